// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"testing"

	"wangell.loutres.me/internal/wire"
)

func TestDaemonSaysWhatItsGateHoldsAndWhoIsConnected(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(1)
	w.echo(1)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	await[*wire.Listening](w)
	pod.State = wire.PodServing
	w.send(&wire.Backends{Service: vip, Generation: 2, Pods: []wire.Backend{pod}})
	for range 2 {
		echoes(t, open(t, clientNet, vip))
	}
	w.flowsOf(vip, 2)

	w.send(&wire.Inspect{Number: 5})
	got := await[*wire.GateState](w)
	if got.Number != 5 || !slices.Contains(got.Tables, wire.GateTable{Name: "services", Used: 1, Size: 16384}) ||
		!slices.ContainsFunc(got.Interfaces, func(i wire.GateInterface) bool { return i.Name == "eth0" }) {
		t.Errorf("%+v", got)
	}
	if !slices.ContainsFunc(got.Counters, func(c wire.GateCounter) bool { return c.Name == "arp_replies" }) {
		t.Errorf("counters %+v", got.Counters)
	}
	w.send(&wire.Inspect{Number: 6, Most: 3})
	who := await[*wire.Connected](w)
	want := []wire.ConnectedPair{{Client: netip.MustParseAddr("10.46.200.10"), Service: vip, Open: 2}}
	if who.Number != 6 || who.Others != 0 || !slices.Equal(who.Pairs, want) {
		t.Errorf("%+v, want %+v", who, want)
	}
}
