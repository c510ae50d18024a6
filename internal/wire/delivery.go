// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"wangell.loutres.me/internal/base/backoff"
)

const (
	// sendWindow is the number of segments, counted from the oldest unacknowledged one, that may be in flight. 64
	// datagrams of 1,200 bytes fit the kernel's default socket buffer (net.core.rmem_default, 212,992 bytes).
	sendWindow = 64
	// firstWindow is how many of them a session begins with. Each acknowledged one adds one, as in TCP's slow start, and
	// a repetition halves the window: many sessions that begin at once must not drown the acknowledgements.
	firstWindow = 8

	// A segment is repeated firstRepeat plus patience after it was sent, then after pauses that double up to lastRepeat
	// or two round trips, whichever is longer.
	firstRepeat = 4 * time.Millisecond
	lastRepeat  = 250 * time.Millisecond
)

// outgoing is a reliable message that is being sent.
type outgoing struct {
	data    []byte      // complete encoding; read-only, because messages to several peers share it
	unacked int         // segments without an acknowledgement
	done    func(error) // optional; called once, with nil when the peer's handler has returned
}

// segment is a part of an outgoing message that fits a datagram.
type segment struct {
	msg   *outgoing
	data  []byte
	flags uint8
	seq   uint64 // set when first sent
	acked bool
	// repeated is set once it has been sent more than once.
	repeated bool
	first    time.Time     // when it was first sent
	due      time.Time     // when it is repeated
	pause    time.Duration // between the last two transmissions, or until the first repetition
}

// sender numbers the reliable segments of one direction and repeats them until they are acknowledged. It does no I/O.
type sender struct {
	next   uint64     // number of the next segment that has not been sent
	queue  []*segment // not yet sent
	flight []*segment // sent and not acknowledged, or handling not confirmed; in order of numbers
	rtt    time.Duration

	grown    uint64 // by how much the window is greater than firstWindow
	shrunkAt uint64 // value of next when the window was last halved
	filling  bool   // segments are sent until the window is full, or all are

	// How long acknowledgements take, by the segments that were sent once: smoothed, and its mean deviation (RFC 6298).
	// It grows with the load of both ends, unlike rtt.
	smoothed, deviation time.Duration
	// backoff is the pause of the last acknowledged segment that was repeated, until one is acknowledged that was not:
	// the repetition may not have been the cause (Karn, 1987).
	backoff time.Duration
}

// patience is how long an acknowledgement may take, beyond firstRepeat, before the segment counts as lost.
func (s *sender) patience() time.Duration {
	return max(2*s.rtt, min(max(s.smoothed+4*s.deviation, s.backoff), lastRepeat))
}

// learn records the time until a segment was acknowledged.
func (s *sender) learn(g *segment, now time.Time) {
	if g.repeated {
		s.backoff = g.pause
		return
	}
	s.backoff = 0
	took := now.Sub(g.first)
	if s.smoothed == 0 {
		s.smoothed, s.deviation = took, took/2
		return
	}
	s.deviation += ((took - s.smoothed).Abs() - s.deviation) / 4
	s.smoothed += (took - s.smoothed) / 8
}

// push splits a message into segments and queues them.
func (s *sender) push(m *outgoing) {
	for rest := m.data; len(rest) > 0; {
		n := min(len(rest), maxSegment)
		seg := &segment{msg: m, data: rest[:n]}
		if rest = rest[n:]; len(rest) > 0 {
			seg.flags |= flagMore
		} else if m.done != nil {
			seg.flags |= flagDone
		}
		m.unacked++
		s.queue = append(s.queue, seg)
	}
}

// lowest returns the number of the oldest unacknowledged segment.
func (s *sender) lowest() uint64 {
	for _, g := range s.flight {
		if !g.acked {
			return g.seq
		}
	}
	return s.next
}

// end returns the number of the first segment beyond the window.
func (s *sender) end() uint64 { return s.lowest() + firstWindow + s.grown }

// peek returns the segment to send now, or nil. Segments that are due for repetition come before new ones. New ones
// wait until half of the window is free, unless all of them can go: few large datagrams cost less than many small ones.
func (s *sender) peek(now time.Time) *segment {
	end := s.end()
	for _, g := range s.flight {
		if g.seq >= end {
			break
		}
		if !g.due.After(now) {
			return g
		}
	}
	if len(s.queue) == 0 || s.next >= end {
		s.filling = false
		return nil
	}
	room := end - s.next
	if s.filling = s.filling || room >= uint64(len(s.queue)) || room >= (firstWindow+s.grown)/2; !s.filling {
		return nil
	}
	return s.queue[0]
}

// sent records that the segment returned by peek was sent. It reports whether that was a repetition.
func (s *sender) sent(g *segment, now time.Time) (repeat bool) {
	if g.pause > 0 {
		g.repeated = true
		if g.seq >= s.shrunkAt { // once for all that were in flight
			s.shrunkAt = s.next
			s.grown = max((firstWindow+s.grown)/2, firstWindow) - firstWindow
		}
		g.pause = backoff.Next(g.pause, firstRepeat, max(lastRepeat, 2*s.rtt))
		g.due = now.Add(g.pause)
		return true
	}
	s.queue[0] = nil
	s.queue = s.queue[1:]
	g.seq = s.next
	s.next++
	g.first, g.pause = now, firstRepeat+s.patience()
	g.due = now.Add(g.pause)
	s.flight = append(s.flight, g)
	return false
}

// acknowledge applies the peer's acknowledgement. It returns the callbacks of the messages that were handled. ok is
// false if the acknowledgement covers segments that were never sent.
func (s *sender) acknowledge(a ack, now time.Time) (handled []func(error), ok bool) {
	if a.next > s.next || a.done > a.next {
		return nil, false
	}
	keep := s.flight[:0]
	for _, g := range s.flight {
		if !g.acked && (g.seq < a.next || g.seq > a.next && g.seq-a.next-1 < 64 && a.bits>>(g.seq-a.next-1)&1 == 1) {
			g.acked = true
			if !g.repeated {
				s.grown = min(s.grown+1, sendWindow-firstWindow)
			}
			s.learn(g, now)
			g.msg.unacked--
		}
		switch {
		case !g.acked || g.flags&flagDone != 0 && g.seq >= a.done:
			keep = append(keep, g)
		case g.flags&flagDone != 0:
			handled = append(handled, g.msg.done)
		}
	}
	clear(s.flight[len(keep):])
	s.flight = keep
	return handled, true
}

// deadline returns when peek next has a segment to repeat; zero if never.
func (s *sender) deadline() (t time.Time) {
	end := s.end()
	for _, g := range s.flight {
		if g.seq >= end {
			break
		}
		if t.IsZero() || g.due.Before(t) {
			t = g.due
		}
	}
	return t
}

// unanswered returns the callbacks of the messages whose handling was not confirmed.
func (s *sender) unanswered() (out []func(error)) {
	for _, segs := range [][]*segment{s.flight, s.queue} {
		for _, g := range segs {
			if g.flags&flagDone != 0 {
				out = append(out, g.msg.done)
			}
		}
	}
	return out
}

// unfinished returns the messages that were not completely acknowledged, in order.
func (s *sender) unfinished() (out []*outgoing) {
	for _, segs := range [][]*segment{s.flight, s.queue} {
		for _, g := range segs {
			if g.msg.unacked > 0 && (len(out) == 0 || out[len(out)-1] != g.msg) {
				out = append(out, g.msg)
			}
		}
	}
	return out
}

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
