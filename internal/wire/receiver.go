// SPDX-License-Identifier: Apache-2.0

package wire

// maxReady is how many segments may wait for the handler; beyond it they are not acknowledged, and
// the peer repeats them later.
const maxReady = 256

// incoming is a segment as received, or an unreliable message.
type incoming struct {
	reliable bool
	seq      uint64
	flags    uint8
	data     []byte
}

// receiver brings reliable segments in order and drops those it has had. It does no I/O.
type receiver struct {
	next  uint64               // all below were received
	early [sendWindow]incoming // received, with a gap before them; by number modulo
	ready []incoming           // in order, not yet taken
	done  uint64               // all below were handled
}

// accept takes a segment; data is copied. It returns whether the segment was new and is kept.
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

// acceptUnreliable puts a message among the ready ones if there is room.
func (r *receiver) acceptUnreliable(data []byte) bool {
	if len(r.ready) >= maxReady {
		return false
	}
	r.ready = append(r.ready, incoming{data: append([]byte(nil), data...)})
	return true
}

// take returns the next segment for the handler.
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

// ack is what the peer is told.
func (r *receiver) ack() ack {
	a := ack{next: r.next, done: r.done}
	for i := uint64(0); i < sendWindow-1; i++ {
		if r.early[(r.next+1+i)%sendWindow].data != nil {
			a.bits |= 1 << i
		}
	}
	return a
}
