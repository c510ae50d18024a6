// SPDX-License-Identifier: Apache-2.0

package wire

// replayBits is how far a datagram may come behind the newest one.
const replayBits = 1024

// replayWindow remembers which counters were opened, as RFC 6479 describes.
type replayWindow struct {
	top  uint64 // one past the highest counter
	bits [replayBits / 64]uint64
}

// fresh tells whether a counter may still be accepted.
func (w *replayWindow) fresh(c uint64) bool {
	if c >= w.top {
		return true
	}
	if w.top-c > replayBits {
		return false
	}
	return w.bits[c/64%uint64(len(w.bits))]&(1<<(c%64)) == 0
}

// commit marks a counter whose datagram opened. Nothing unopened may come here: it moves the window.
func (w *replayWindow) commit(c uint64) {
	if c >= w.top {
		if c-w.top >= replayBits {
			w.bits = [replayBits / 64]uint64{}
		} else {
			for i := w.top; i < c; i++ {
				w.bits[i/64%uint64(len(w.bits))] &^= 1 << (i % 64)
			}
		}
		w.top = c + 1
	}
	w.bits[c/64%uint64(len(w.bits))] |= 1 << (c % 64)
}
