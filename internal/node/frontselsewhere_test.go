// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/e2e"
)

// Whichever node goes, the next owner of a VIP knows the former one, and the other way round once it is back.
func TestNextOwnerKnowsTheFormerOne(t *testing.T) {
	var all []scored
	for i := range 9 {
		all = append(all, score(fmt.Sprintf("node-%d", i)))
	}
	for i := range byte(200) {
		vip := netip.AddrFrom4([4]byte{10, 46, 100, i})
		left := slices.Clone(all)
		for range frontNodes {
			former := owner(vip, left)
			left = slices.DeleteFunc(left, func(n scored) bool { return n.name == former.name })
			next := owner(vip, left)
			known := func(at scored) (names []string) {
				others := slices.DeleteFunc(slices.Clone(all), func(n scored) bool { return n.name == at.name })
				for _, n := range formerOwners(vip, others) {
					names = append(names, n.name)
				}
				return names
			}
			if got := known(next); !slices.Contains(got, former.name) {
				t.Errorf("%v: %v does not know %v: %v", vip, next.name, former.name, got)
			}
			if got := known(former); !slices.Contains(got, next.name) {
				t.Errorf("%v: %v does not know %v: %v", vip, former.name, next.name, got)
			}
		}
		if got := len(formerOwners(vip, slices.Clone(all))); got != frontNodes {
			t.Errorf("%d nodes", got)
		}
	}
	if got := formerOwners(netip.AddrFrom4([4]byte{10, 46, 100, 1}), nil); len(got) > 0 {
		t.Errorf("of no others: %v", got)
	}
}

// A node that has left the list is a neighbor as long as its packets are accepted.
func TestNodesThatHaveLeftStayNeighbors(t *testing.T) {
	self, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	m := membership{self: self}
	now := monotime.Time(time.Hour)
	list := func(generation uint64, nodes ...wire.NodeInfo) {
		m.add(&wire.Nodes{Generation: generation, Pieces: 1, Nodes: nodes}, now)
	}
	m.accept(netip.MustParseAddr("192.0.2.3"), now) // no list has it, so it has announced nothing
	list(1, wire.NodeInfo{Name: "self", Addr: self}, wire.NodeInfo{Name: "other", Addr: other})
	list(2, wire.NodeInfo{Name: "self", Addr: self})
	for after, want := range map[time.Duration]int{0: 1, senderHold: 1, senderHold + 1: 0} {
		got := m.neighbors(now.Add(after))
		if len(got) != want || want > 0 && (got[0].name != "other" || got[0].addr != other) {
			t.Errorf("after %v: %v", after, got)
		}
	}
}

// The gate of the node that announces a VIP has the fronts of nodes that may have announced it before.
func TestGateReachesFrontsOfFormerOwners(t *testing.T) {
	self, other := netip.MustParseAddr("10.46.200.1"), netip.MustParseAddr("10.46.200.2")
	w := newWorld(t, func(c *Config) { c.NodeAddr, c.EncapPort = self, 7947 })
	better := ""
	for i := 0; better == ""; i++ {
		name := fmt.Sprintf("other-%d", i)
		if owner(vip.Addr(), []scored{score("n1"), score(name)}).name == name {
			better = name
		}
	}
	service := hello(wire.FlagRequests | wire.FlagAnnounce)
	service.Requests = wire.Requests{Protocol: wire.ProtocolAuto}
	w.table([]wire.Service{service})
	both := []wire.NodeInfo{{Name: "n1", Addr: self}, {Name: better, Addr: other}}
	known := func() (ids []uint64) { // the gate can only be looked at without the daemon
		w.stop()
		w.withGate(func(g *gate.Gate) { ids = slices.Sorted(maps.Keys(g.FrontsElsewhere(vip))) })
		w.start()
		return ids
	}
	want := func(when string, ids ...uint64) {
		t.Helper()
		got := known()
		if slices.Sort(ids); !slices.Equal(got, ids) {
			t.Errorf("%s: %x, want %x", when, got, ids)
		}
	}
	ids := gate.FrontIDs(other)
	w.send(&wire.Nodes{Generation: 1, Pieces: 1, Nodes: both})
	want("another node announces it")
	w.send(&wire.Nodes{Generation: 1, Pieces: 1, Nodes: both})
	w.send(&wire.Nodes{Generation: 2, Pieces: 1, Nodes: both[:1]})
	want("that node has left", ids[:]...)
	want("the daemon was restarted", ids[:]...)
	w.send(&wire.Nodes{Generation: 1, Pieces: 1, Nodes: both})
	want("that node is back")
	w.send(&wire.Nodes{Generation: 1, Pieces: 1, Nodes: both})
	w.send(&wire.Nodes{Generation: 2, Pieces: 1, Nodes: both[:1]})
	w.table([]wire.Service{hello(wire.FlagAnnounce)})
	// The daemon does that in the background, also the next one.
	e2e.Eventually(t, "connections are balanced", func() (bool, string) {
		got := known()
		return len(got) == 0, fmt.Sprintf("%x", got)
	})
}
