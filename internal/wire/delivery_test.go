// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// Sender and receiver run in simulated time. In the end, nothing must be left to repeat.
func TestSegmentsArriveOnceAndInOrderOverABadNetwork(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		loss := float64(seed%5) / 10
		var s sender
		var r receiver
		now := time.Unix(0, 0)
		type flying struct {
			at    time.Time
			seg   *segment
			ack   ack
			toAck bool
		}
		var air []flying
		fly := func(f flying) {
			for range 1 + rnd.IntN(10)/9 {
				if rnd.Float64() >= loss {
					f.at = now.Add(time.Duration(rnd.IntN(10_000)) * time.Microsecond)
					air = append(air, f)
				}
			}
		}
		const messages = 300
		handled := 0
		var total, got int
		for i := range messages {
			size := 4 + rnd.IntN(3*maxSegment)
			data := make([]byte, size)
			binary.BigEndian.PutUint32(data, uint32(i))
			o := &outgoing{data: data}
			if i%3 == 0 {
				o.done = func(error) { handled++ }
			}
			s.push(o)
			total += size
		}
		var whole []byte
		arrived := 0
		for steps := 0; arrived < messages || handled < messages/3 || len(s.flight) > 0; steps++ {
			if steps > 1_000_000 {
				t.Fatalf("seed %d: no progress: %d arrived, %d handled, %d in flight",
					seed, arrived, handled, len(s.flight))
			}
			for g := s.peek(now); g != nil; g = s.peek(now) {
				s.sent(g, now)
				fly(flying{seg: g})
			}
			if n := s.next - s.lowest(); n > sendWindow {
				t.Fatalf("%d segments without an acknowledgement", n)
			}
			now = now.Add(500 * time.Microsecond)
			keep := air[:0:0]
			for _, f := range air {
				switch {
				case f.at.After(now):
					keep = append(keep, f)
				case f.toAck:
					done, ok := s.acknowledge(f.ack, now)
					if !ok {
						t.Fatal("acknowledgement rejected")
					}
					for _, d := range done {
						d(nil)
					}
				default:
					r.accept(f.seg.seq, f.seg.flags, f.seg.data)
				}
			}
			air = keep
			for in, ok := r.take(); ok; in, ok = r.take() {
				if in.seq != r.done {
					t.Fatalf("segment %d after %d", in.seq, r.done)
				}
				whole = append(whole, in.data...)
				if in.flags&flagMore == 0 {
					if n := binary.BigEndian.Uint32(whole); int(n) != arrived {
						t.Fatalf("message %d arrived as number %d", n, arrived)
					}
					arrived++
					got += len(whole)
					whole = nil
				}
				r.done = in.seq + 1
			}
			fly(flying{ack: r.ack(), toAck: true})
		}
		if got != total || handled != messages/3 || !s.deadline().IsZero() || len(s.unfinished()) != 0 {
			t.Errorf("seed %d: %d of %d bytes, %d handled", seed, got, total, handled)
		}
	}
}

func TestSegmentsAreRepeatedWithinMillisecondsAndThenLessOften(t *testing.T) {
	var s sender
	now := time.Unix(0, 0)
	s.push(&outgoing{data: []byte{1}})
	s.sent(s.peek(now), now)
	var gaps []time.Duration
	for range 9 {
		d := s.deadline()
		gaps = append(gaps, d.Sub(now))
		if s.peek(d.Add(-1)) != nil {
			t.Fatal("repeated too early")
		}
		now = d
		s.sent(s.peek(now), now)
	}
	want := []time.Duration{4, 8, 16, 32, 64, 128, 250, 250, 250}
	for i := range want {
		if gaps[i] != want[i]*time.Millisecond {
			t.Fatalf("pauses %v", gaps)
		}
	}
	if _, ok := s.acknowledge(ack{next: 2}, time.Time{}); ok {
		t.Error("an acknowledgement of a segment that was never sent is accepted")
	}
}

func TestReceiverKeepsALimitedNumberOfMessages(t *testing.T) {
	var r receiver
	if r.accept(sendWindow, 0, []byte{1}) {
		t.Error("a segment beyond the window is kept")
	}
	for i := range uint64(10 * maxReady) {
		r.accept(i, 0, []byte{1})
		r.acceptUnreliable([]byte{1})
	}
	if n := len(r.ready); n != maxReady {
		t.Errorf("%d messages wait, at most %d", n, maxReady)
	}
}

func TestClockFilterUsesTheShortestRoundTrip(t *testing.T) {
	var f clockFilter
	const offset = 1_000_000 // peer's clock + offset = own clock
	for _, d := range [][2]int64{{500, 90_000}, {40, 60}, {70_000, 20}, {-5_000_000, 0}} {
		asked := int64(2_000_000)
		arrived := asked - offset + d[0]
		answered := arrived + 777
		f.add(exchange{
			asked: mono(asked), arrived: mono(arrived), answered: mono(answered),
			received: mono(answered + offset + d[1]),
		})
	}
	rtt, got := f.best()
	if rtt != 100 || got != offset+10 {
		t.Errorf("round trip %d, offset %d", rtt, got)
	}
}

func mono(n int64) monotime.Time { return monotime.Time(n) }

// TestBusyPeerIsNotFloodedWithRepetitions acknowledges every segment only after a time that is longer than the first
// pause, as a peer does that has much to do. The sender has to learn that nothing is lost.
func TestBusyPeerIsNotFloodedWithRepetitions(t *testing.T) {
	const late = 40 * time.Millisecond
	var s sender
	now := time.Unix(1000, 0)
	repeats := 0
	for i := range 100 {
		s.push(&outgoing{data: []byte{byte(i)}})
		sent := now
		g := s.peek(now)
		s.sent(g, now)
		for now = s.deadline(); now.Sub(sent) < late; now = s.deadline() {
			s.sent(s.peek(now), now)
			repeats++
		}
		now = sent.Add(late)
		if _, ok := s.acknowledge(ack{next: uint64(i + 1)}, now); !ok {
			t.Fatal("acknowledgement refused")
		}
	}
	if repeats > 10 {
		t.Errorf("%d repetitions of 100 segments of which none was lost", repeats)
	}
	// Once the peer is quick again, a lost segment is repeated soon.
	for i := range 100 {
		s.push(&outgoing{data: []byte{0}})
		s.sent(s.peek(now), now)
		now = now.Add(100 * time.Microsecond)
		s.acknowledge(ack{next: uint64(101 + i)}, now)
	}
	if p := firstRepeat + s.patience(); p > 2*firstRepeat {
		t.Errorf("a lost segment would be repeated after %v", p)
	}
}

// sendAll sends as much as the window allows, and returns the number of segments.
func (s *sender) sendAll(now time.Time) (n int) {
	for g := s.peek(now); g != nil; g = s.peek(now) {
		s.sent(g, now)
		n++
	}
	return n
}

func TestWindowGrowsWithAcknowledgementsAndShrinksWithRepetitions(t *testing.T) {
	var s sender
	now := time.Unix(1000, 0)
	for range 400 {
		s.push(&outgoing{data: []byte{0}})
	}
	for _, want := range []int{8, 16, 32, 64, 64} {
		if n := s.sendAll(now); n != want {
			t.Fatalf("%d segments sent, want %d", n, want)
		}
		s.acknowledge(ack{next: s.next}, now)
	}
	if n := s.sendAll(now); n != 64 {
		t.Fatalf("%d segments sent", n)
	}
	// All of them are lost. The oldest are repeated, and few at a time.
	var repeats []int
	for range 4 {
		now = s.deadline()
		repeats = append(repeats, s.sendAll(now))
	}
	if !slices.Equal(repeats, []int{32, 32, 32, 32}) {
		t.Errorf("repeated %v segments", repeats)
	}
	// An acknowledgement that frees a part of the window has the rest repeated, not new ones sent.
	s.acknowledge(ack{next: s.lowest() + 32}, now)
	if n := s.sendAll(now); n != 32 || s.next != 8+16+32+64+64+64 {
		t.Errorf("%d segments sent, the next one is %d", n, s.next)
	}
}

func TestSmallSegmentsShareDatagramsWhenTheWindowIsFull(t *testing.T) {
	s := sender{grown: sendWindow - firstWindow}
	now := time.Unix(1000, 0)
	for range 200 {
		s.push(&outgoing{data: []byte{0}})
	}
	s.sendAll(now)
	for i := range uint64(sendWindow/2 - 1) {
		if s.acknowledge(ack{next: i + 1}, now); s.sendAll(now) != 0 {
			t.Fatalf("%d acknowledgements had few segments sent", i+1)
		}
	}
	if s.acknowledge(ack{next: sendWindow / 2}, now); s.sendAll(now) != sendWindow/2 {
		t.Error("half of the window is free and was not used")
	}
	// The last ones do not wait.
	s.acknowledge(ack{next: s.next}, now)
	for len(s.queue) > 0 {
		s.sendAll(now)
		s.acknowledge(ack{next: s.next}, now)
	}
	s.push(&outgoing{data: []byte{0}})
	if s.sendAll(now) != 1 {
		t.Error("a single segment waits")
	}
}

// TestManySessionsDoNotDrownAcknowledgements has many senders that begin at once, and whose acknowledgements arrive in
// one queue that is short and slow, like the socket of a server that a large cluster joins.
func TestManySessionsDoNotDrownAcknowledgements(t *testing.T) {
	const (
		senders, segments = 200, 200
		queue             = 300                    // acknowledgements that wait; further ones are lost
		each              = 10 * time.Microsecond  // that the server needs for one
		way               = 500 * time.Microsecond // to the clients and back
	)
	type arrival struct {
		at  time.Time
		who int
	}
	all, heard := make([]sender, senders), make([]receiver, senders)
	now := time.Unix(1000, 0)
	var air, waiting []arrival // in order of time
	transmitted := 0
	send := func(i int) {
		n := 0
		for g := all[i].peek(now); g != nil; g = all[i].peek(now) {
			all[i].sent(g, now)
			heard[i].accept(g.seq, g.flags, g.data)
			for _, ok := heard[i].take(); ok; _, ok = heard[i].take() {
			}
			n++
			air = append(air, arrival{now.Add(way), i})
		}
		transmitted += n
	}
	for i := range all {
		for range segments {
			all[i].push(&outgoing{data: []byte{0}})
		}
		send(i)
	}
	for begin := now; ; now = now.Add(each) {
		for len(air) > 0 && !air[0].at.After(now) {
			if len(waiting) < queue {
				waiting = append(waiting, air[0])
			}
			air = air[1:]
		}
		if len(waiting) > 0 {
			i := waiting[0].who
			waiting = waiting[1:]
			all[i].acknowledge(heard[i].ack(), now)
			send(i)
		}
		busy := false
		for i := range all {
			if d := all[i].deadline(); !d.IsZero() {
				if busy = true; !d.After(now) {
					send(i)
				}
			}
		}
		if !busy {
			break
		}
		if now.Sub(begin) > time.Minute {
			t.Fatal("not done after a minute")
		}
	}
	t.Logf("%d segments, %d transmissions", senders*segments, transmitted)
	if transmitted > senders*segments*5/4 {
		t.Errorf("%d transmissions of %d segments, none of which was lost", transmitted, senders*segments)
	}
}
