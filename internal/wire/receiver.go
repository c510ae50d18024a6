// SPDX-License-Identifier: Apache-2.0

package wire

// maxReady is the number of segments that may wait for the handler. Further ones are not acknowledged, so the peer
// repeats them later.
const maxReady = 256

// incoming is a received segment or unreliable message.
type incoming struct {
	reliable bool
	seq      uint64
	flags    uint8
	data     []byte
}

// receiver orders the reliable segments of one direction and drops duplicates. It does no I/O.
type receiver struct {
	next  uint64               // all segments below were received
	early [sendWindow]incoming // received out of order, at index number modulo sendWindow
	ready []incoming           // in order, waiting for the handler
	done  uint64               // all segments below were handled
}

// accept keeps a copy of a segment unless it is a duplicate, outside the window, or too many segments wait for the
// handler. It reports whether it kept the segment.
func (r *receiver) accept(seq uint64, flags uint8, data []byte) bool {
	if seq < r.next || seq-r.next >= sendWindow || len(r.ready) >= maxReady {
		return false
	}
	slot := &r.early[seq%sendWindow]
	if slot.data != nil {
		return false
	}
	*slot = incoming{reliable: true, seq: seq, flags: flags, data: append([]byte(nil), data...)}
	for slot = &r.early[r.next%sendWindow]; slot.data != nil; slot = &r.early[r.next%sendWindow] {
		r.ready = append(r.ready, *slot)
		*slot = incoming{}
		r.next++
	}
	return true
}

// acceptUnreliable keeps a copy of an unreliable message unless too many wait for the handler, and reports whether it
// did.
func (r *receiver) acceptUnreliable(data []byte) bool {
	if len(r.ready) >= maxReady {
		return false
	}
	r.ready = append(r.ready, incoming{data: append([]byte(nil), data...)})
	return true
}

// take removes and returns the next segment for the handler.
func (r *receiver) take() (in incoming, ok bool) {
	if len(r.ready) == 0 {
		return in, false
	}
	in = r.ready[0]
	r.ready[0] = incoming{}
	if r.ready = r.ready[1:]; len(r.ready) == 0 {
		r.ready = nil
	}
	return in, true
}

// ack returns the acknowledgement of everything received and handled so far.
func (r *receiver) ack() ack {
	a := ack{next: r.next, done: r.done}
	for i := uint64(0); i < sendWindow-1; i++ {
		if r.early[(r.next+1+i)%sendWindow].data != nil {
			a.bits |= 1 << i
		}
	}
	return a
}
