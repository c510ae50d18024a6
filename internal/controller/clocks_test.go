// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

// The daemon of another machine has another clock, which is estimated anew with each keepalive: the time of the same
// packet differs from message to message, by more the longer they are apart.
func TestServiceSleepsAlthoughTheClockOfItsNodeIsEstimatedAnew(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.IdleTimeout = 10 }))
	a := w.warm("a")
	last := monotime.Now()
	stats := func(open uint32, at monotime.Time) {
		w.d.send(&wire.Stats{Pods: []wire.PodStats{{
			Service: a, PodID: wireID("a-1"), NewFlows: 1, BytesIn: 9, OpenFlows: open, LastPacket: at,
		}}})
		w.until("its connections are known", func() bool { return w.status("a").Traffic.OpenFlows == open })
	}
	stats(1, last)
	stats(0, last.Add(-10*time.Microsecond)) // it has aged, without a packet
	w.d.set(func(d *fakeDaemon) { d.last[a] = last })
	w.d.send(&wire.Idle{Service: a, LastPacket: last.Add(-10 * time.Millisecond)})
	w.untilState("a", "Cold")
}

// A packet that came after the report of idleness counts.
func TestServiceThatIsUsedAgainDoesNotSleep(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.IdleTimeout = 1 }))
	a := w.warm("a")
	last := monotime.Now()
	for i, at := range []monotime.Time{last, last.Add(time.Second)} {
		w.d.send(&wire.Stats{Pods: []wire.PodStats{{
			Service: a, PodID: wireID("a-1"), NewFlows: uint64(i + 1), LastPacket: at,
		}}})
		w.until("its packet is known", func() bool { return w.status("a").Traffic.NewFlows == uint64(i+1) })
	}
	w.d.send(&wire.Idle{Service: a, LastPacket: last})
	w.d.send(&wire.Trace{Service: a, PodID: wireID("a-1"), ReleasedN: 7}) // comes after it
	w.until("the report is handled", func() bool { return w.status("a").LastWake.Released == 7 })
	if w.state("a") != "Warm" {
		t.Errorf("it is %s", w.state("a"))
	}
}
