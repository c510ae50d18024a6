// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/rand/v2"
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
