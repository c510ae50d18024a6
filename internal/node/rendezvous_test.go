// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

func nodesOf(n int) []scored {
	out := make([]scored, n)
	for i := range out {
		out[i] = score(fmt.Sprintf("node-%d", i+1))
	}
	return out
}

func vipNumber(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 46, byte(i >> 8), byte(i)})
}

func TestVIPsAreSpreadEvenly(t *testing.T) {
	const vips = 10_000
	for _, n := range []int{1, 2, 3, 10, 50} {
		count := map[string]int{}
		for i := range vips {
			count[owner(vipNumber(i), nodesOf(n))]++
		}
		// The counts are binomial: five standard deviations are never seen by chance.
		mean := vips / n
		most := mean + 5*int(math.Sqrt(float64(mean)))
		for _, node := range nodesOf(n) {
			if c := count[node.name]; c > most || c < 2*mean-most {
				t.Errorf("%d nodes: %s has %d of %d VIPs, want about %d", n, node.name, c, vips, mean)
			}
		}
	}
}

// TestOnlyTheVIPsOfANodeMove: when a node goes its VIPs move and no other; when it is back, all is as before.
func TestOnlyTheVIPsOfANodeMove(t *testing.T) {
	all := nodesOf(7)
	without := append(append([]scored{}, all[:3]...), all[4:]...)
	gone := all[3].name
	moved := map[string]int{}
	for i := range 5000 {
		vip := vipNumber(i)
		before, after := owner(vip, all), owner(vip, without)
		if before != gone && before != after {
			t.Fatalf("%v moves from %s to %s, though %s went", vip, before, after, gone)
		}
		if before == gone {
			moved[after]++
		}
	}
	if len(moved) != 6 {
		t.Errorf("the VIPs of the node that went are on %v: want all six others", moved)
	}
}

// TestOwnerIsSpecified: nodes of different versions must agree; docs/protocol.md has these.
func TestOwnerIsSpecified(t *testing.T) {
	nodes := nodesOf(3)
	for vip, want := range map[string]string{"10.46.100.105": "node-3", "10.46.100.1": "node-1", "10.46.100.2": "node-1", "192.0.2.1": "node-2"} {
		got := owner(netip.MustParseAddr(vip), nodes)
		reversed := []scored{nodes[2], nodes[1], nodes[0]}
		if again := owner(netip.MustParseAddr(vip), reversed); again != got {
			t.Errorf("%s: %s or %s, by the order of the nodes", vip, got, again)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", vip, got, want)
		}
	}
	if got := owner(vipNumber(1), nil); got != "" {
		t.Errorf("without nodes: %q", got)
	}
}

func TestMembershipIsWhole(t *testing.T) {
	var m membership
	info := func(names ...string) (out []wire.NodeInfo) {
		for _, n := range names {
			out = append(out, wire.NodeInfo{Name: n})
		}
		return out
	}
	if _, known := m.list(); known {
		t.Error("known before anything was told")
	}
	for _, c := range []struct {
		piece wire.Nodes
		whole bool
		nodes int
	}{
		{wire.Nodes{Generation: 5, Piece: 0, Pieces: 2, Nodes: info("a")}, false, 0},
		{wire.Nodes{Generation: 5, Piece: 1, Pieces: 2, Nodes: info("b")}, true, 2},
		{wire.Nodes{Generation: 4, Piece: 0, Pieces: 1}, false, 2},                   // old
		{wire.Nodes{Generation: 6, Piece: 0, Pieces: 2, Nodes: info("c")}, false, 2}, // begun,
		{wire.Nodes{Generation: 7, Piece: 1, Pieces: 2, Nodes: info("d")}, false, 2}, // and another's end
		{wire.Nodes{Generation: 6, Piece: 1, Pieces: 2, Nodes: info("d")}, false, 2},
		{wire.Nodes{Generation: 8, Piece: 0, Pieces: 1, Nodes: info("x", "y", "z")}, true, 3},
		{wire.Nodes{Generation: 8, Piece: 0, Pieces: 1, Nodes: info("x")}, true, 1}, // told again
		{wire.Nodes{Generation: 9, Piece: 0, Pieces: 1}, true, 0},
	} {
		if got := m.add(&c.piece, 1); got != c.whole {
			t.Errorf("%+v completes the list: %v", c.piece, got)
		}
		if nodes, _ := m.list(); len(nodes) != c.nodes {
			t.Errorf("after %+v: %v", c.piece, nodes)
		}
	}
	// Another session counts anew.
	m.begin()
	if !m.add(&wire.Nodes{Generation: 1, Pieces: 1, Nodes: info("n")}, 1) {
		t.Error("a generation of another session is compared")
	}
}

// TestSilentNode: packets of a node whose daemon is not heard of are taken for a while; its gate goes on.
func TestSilentNode(t *testing.T) {
	var m membership
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	tell := func(generation uint64, at time.Duration, addrs ...netip.Addr) {
		t.Helper()
		piece := &wire.Nodes{Generation: generation, Pieces: 1}
		for _, addr := range addrs {
			piece.Nodes = append(piece.Nodes, wire.NodeInfo{Name: addr.String(), Addr: addr})
		}
		if !m.add(piece, monotime.Time(1).Add(at)) {
			t.Fatal("the list is not whole")
		}
	}
	tell(1, 0, a, b)
	tell(2, time.Hour, a) // b was there for an hour
	if got := m.accepted(); !slices.Equal(got, []netip.Addr{a, b}) {
		t.Errorf("after b fell silent: %v", got)
	}
	tell(3, time.Hour+senderHold+1, a)
	if got := m.accepted(); !slices.Equal(got, []netip.Addr{a}) {
		t.Errorf("long after b fell silent: %v", got)
	}
}
