// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"slices"
	"testing"
)

func TestConnectionsAreCountedByClientAndService(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.warm(vip, 1)
	w.fillFlows(600)
	closing := gateFlow{State: closed, Generation: 1}
	w.must(w.g.objs.Flows.Put(flowKey(netip.MustParseAddrPort("10.45.9.9:7"), vip), closing))
	w.addRemote(2)
	remote := gateFlow{State: estab}
	for i := range w.g.pods.items {
		if p := w.g.pods.at(uint32(i)); p.Id == 2 {
			remote.Pod, remote.Generation = uint32(i), p.Generation
		}
	}
	if remote.Pod == 0 {
		t.Fatal("the pod of another node has no entry")
	}
	w.must(w.g.objs.Flows.Put(flowKey(netip.MustParseAddrPort("10.45.9.9:8"), vip), remote))
	got, others, err := w.g.Connections(2)
	w.must(err)
	want := []Connection{
		{netip.MustParseAddr("10.45.0.0"), vip, 256}, {netip.MustParseAddr("10.45.0.1"), vip, 256},
	}
	if !slices.Equal(got, want) || others != 88 {
		t.Errorf("%v and %d others, want %v and 88", got, others, want)
	}
	if got, others, err := w.g.Connections(10); len(got) != 3 || got[2].Open != 88 || others != 0 || err != nil {
		t.Errorf("%v, %d, %v", got, others, err)
	}
}
