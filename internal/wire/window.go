// SPDX-License-Identifier: Apache-2.0

package wire

// replayBits is the number of counters below the highest one that are still accepted.
const replayBits = 1024

// replayWindow records the counters of the datagrams that were opened (RFC 6479).
type replayWindow struct {
	top  uint64 // one past the highest counter
	bits [replayBits / 64]uint64
}

// fresh reports whether a datagram with counter c may be accepted.
func (w *replayWindow) fresh(c uint64) bool {
	if c >= w.top {
		return true
	}
	if w.top-c > replayBits {
		return false
	}
	return w.bits[c/64%uint64(len(w.bits))]&(1<<(c%64)) == 0
}

// commit records counter c, whose datagram was opened. It must not be called before the datagram is authenticated,
// because it moves the window.
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
