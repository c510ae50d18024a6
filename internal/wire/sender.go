// SPDX-License-Identifier: Apache-2.0

package wire

import "time"

const (
	// sendWindow is how many segments may be on their way without an acknowledgement. 64 datagrams of
	// 1,200 bytes stay below the kernel's default socket buffer (net.core.rmem_default, 212,992 bytes).
	sendWindow = 64

	// A segment is repeated after firstRepeat and two round trips, then twice as late each time.
	firstRepeat = 4 * time.Millisecond
	lastRepeat  = 250 * time.Millisecond
)

// outgoing is a reliable message on its way.
type outgoing struct {
	data    []byte      // whole encoding; never written to, may be shared
	unacked int         // segments without an acknowledgement
	done    func(error) // if set: called once, with nil when the peer's handler has returned
}

// segment is a piece of an outgoing message that fits a datagram.
type segment struct {
	msg   *outgoing
	data  []byte
	flags uint8
	seq   uint64 // set when first sent
	acked bool
	due   time.Time     // when to repeat it
	pause time.Duration // what was waited before that
}

// sender numbers, repeats and forgets the reliable segments of one direction. It does no I/O; the
// time is told to it.
type sender struct {
	next   uint64     // number of the next segment that has not been sent
	queue  []*segment // not yet sent
	flight []*segment // sent, and not acknowledged as far as was asked; by number
	rtt    time.Duration
}

// push queues a message, cut into segments.
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

// lowest is the number of the oldest segment without an acknowledgement.
func (s *sender) lowest() uint64 {
	for _, g := range s.flight {
		if !g.acked {
			return g.seq
		}
	}
	return s.next
}

// peek returns what shall be sent now, or nil: first what is due again, then what is new and fits the window.
func (s *sender) peek(now time.Time) *segment {
	for _, g := range s.flight {
		if !g.due.After(now) {
			return g
		}
	}
	if len(s.queue) > 0 && s.next-s.lowest() < sendWindow {
		return s.queue[0]
	}
	return nil
}

// sent tells that the segment that peek returned went out; it is true for a repeat.
func (s *sender) sent(g *segment, now time.Time) (repeat bool) {
	if g.pause > 0 {
		g.pause = min(2*g.pause, max(lastRepeat, 2*s.rtt))
		g.due = now.Add(g.pause)
		return true
	}
	s.queue[0] = nil
	s.queue = s.queue[1:]
	g.seq = s.next
	s.next++
	g.pause = firstRepeat + 2*s.rtt
	g.due = now.Add(g.pause)
	s.flight = append(s.flight, g)
	return false
}

// acknowledge takes what the peer has received. It returns what is to be called for messages that were
// handled; ok is false if the peer speaks of what was never sent.
func (s *sender) acknowledge(a ack) (handled []func(error), ok bool) {
	if a.next > s.next || a.done > a.next {
		return nil, false
	}
	keep := s.flight[:0]
	for _, g := range s.flight {
		if !g.acked && (g.seq < a.next || g.seq > a.next && g.seq-a.next-1 < 64 && a.bits>>(g.seq-a.next-1)&1 == 1) {
			g.acked = true
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

// deadline is when peek will next have something to repeat; zero if never.
func (s *sender) deadline() (t time.Time) {
	for _, g := range s.flight {
		if t.IsZero() || g.due.Before(t) {
			t = g.due
		}
	}
	return t
}

// unanswered returns what is to be called for messages of which it is not known whether they were handled.
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

// unfinished returns the messages that were not wholly acknowledged, in order.
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
