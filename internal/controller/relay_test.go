// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"wangell.loutres.me/internal/wire"
)

// counts returns the open flows of pods that the daemon received last.
func (d *fakeDaemon) counts() map[uint64]uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[uint64]uint32{}
	for id, n := range d.loads {
		out[id] = n
	}
	return out
}

// The newest count of each pod goes from its home node to all others, and to daemons that join later.
func TestLoadsArePassedOnToOtherNodes(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n2"} })
	a := w.put(newService("a", upTo(2)), 1)
	w.synced()
	w.until("the table", func() bool { return w.d.has(a) && w.d2.has(a) })
	w.scale("a", 2)
	w.untilPods(a, " serving serving")
	one, two := w.d.backend(a, 0), w.d.backend(a, 1)
	if one.Node != "n1" || two.Node != "n2" {
		one, two = two, one
	}
	w.d.send(&wire.Loads{Pods: []wire.PodLoad{{Service: a, PodID: two.PodID, OpenFlows: 99},
		{Service: a, PodID: 12345, OpenFlows: 98}}}) // none of its pods
	for n := range uint32(100) {
		w.d.send(&wire.Loads{Pods: []wire.PodLoad{{Service: a, PodID: one.PodID, OpenFlows: n + 1}}})
	}
	w.d2.send(&wire.Loads{Pods: []wire.PodLoad{{Service: a, PodID: two.PodID, OpenFlows: 7}}})
	w.until("the newest is there", func() bool { return w.d2.counts()[one.PodID] == 100 && w.d.counts()[two.PodID] == 7 })
	if own := w.d2.counts(); len(own) != 1 {
		t.Errorf("n2 received %v", own)
	}
	if own := w.d.counts(); len(own) != 1 {
		t.Errorf("n1 received %v", own)
	}
	w.d2.mu.Lock()
	received := w.d2.loadMessages
	w.d2.mu.Unlock()
	if received > 60 {
		t.Errorf("100 messages of n1 made %d to n2", received)
	}

	// A daemon that joins later gets all.
	d3 := w.daemonOn("n3", &wire.Node{Addr: nodeAddr("n3")})
	defer d3.client.Close()
	w.until("n3 has them", func() bool { c := d3.counts(); return c[one.PodID] == 100 && c[two.PodID] == 7 })

	// A pod that is gone meanwhile is left out.
	w.c.loop.call(func() {
		w.c.receiver.relay.due[&pod{service: w.c.engine.table.byWire[one.PodID].service, id: 4711}] = true
		w.c.receiver.relay.passOn()
		if len(w.c.receiver.relay.due) > 0 || w.c.receiver.relay.armed {
			t.Error("not passed on")
		}
	})
}
