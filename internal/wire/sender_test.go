// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"
	"time"
)

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
