// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

func TestMembershipChangesWhenAListIsComplete(t *testing.T) {
	var m membership
	info := func(names ...string) (out []wire.NodeInfo) {
		for _, n := range names {
			out = append(out, wire.NodeInfo{Name: n, Addr: netip.AddrFrom4([4]byte{192, 0, 2, n[0]})})
		}
		return out
	}
	if _, known := m.candidates(); known {
		t.Error("known before the first list")
	}
	for _, c := range []struct {
		piece wire.Nodes
		whole bool
		nodes int
	}{
		{wire.Nodes{Generation: 5, Piece: 0, Pieces: 2, Nodes: info("a")}, false, 0},
		{wire.Nodes{Generation: 5, Piece: 1, Pieces: 2, Nodes: info("b")}, true, 2},
		{wire.Nodes{Generation: 4, Piece: 0, Pieces: 1}, false, 2},                   // older than the last list
		{wire.Nodes{Generation: 6, Piece: 0, Pieces: 2, Nodes: info("c")}, false, 2}, // begins a list,
		{wire.Nodes{Generation: 7, Piece: 1, Pieces: 2, Nodes: info("d")}, false, 2}, // but the end of another follows
		{wire.Nodes{Generation: 6, Piece: 1, Pieces: 2, Nodes: info("d")}, false, 2},
		{wire.Nodes{Generation: 8, Piece: 0, Pieces: 1, Nodes: info("x", "y", "z")}, true, 3},
		{wire.Nodes{Generation: 8, Piece: 0, Pieces: 1, Nodes: info("x")}, true, 1}, // sent again
		{wire.Nodes{Generation: 9, Piece: 0, Pieces: 1}, true, 0},
	} {
		if got := m.add(&c.piece, 1); got != c.whole {
			t.Errorf("%+v completes the list: %v", c.piece, got)
		}
		if nodes, _ := m.candidates(); len(nodes) != c.nodes {
			t.Errorf("after %+v: %v", c.piece, nodes)
		}
	}
	// Generations are counted per session.
	m.beginSession()
	if !m.add(&wire.Nodes{Generation: 1, Pieces: 1, Nodes: info("n")}, 1) {
		t.Error("a generation was compared with one of the previous session")
	}
}

// The gate of a node keeps running without its daemon.
func TestPacketsOfANodeWithoutDaemonAreAcceptedForAWhile(t *testing.T) {
	var m membership
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	list := func(generation uint64, at time.Duration, addrs ...netip.Addr) {
		t.Helper()
		piece := &wire.Nodes{Generation: generation, Pieces: 1}
		for _, addr := range addrs {
			piece.Nodes = append(piece.Nodes, wire.NodeInfo{Name: addr.String(), Addr: addr})
		}
		if !m.add(piece, monotime.Time(1).Add(at)) {
			t.Fatal("the list is not complete")
		}
	}
	list(1, 0, a, b)
	list(2, time.Hour, a) // b was in the list for an hour
	if got, _ := m.accepted(1); !slices.Equal(got, []gate.Node{{Addr: a}, {Addr: b}}) {
		t.Errorf("after b left the list: %v", got)
	}
	list(3, time.Hour+senderHold+1, a)
	if got, _ := m.accepted(1); !slices.Equal(got, []gate.Node{{Addr: a}}) {
		t.Errorf("long after b left the list: %v", got)
	}
}

// A node tags what it sends to this one when its daemon has got the list that says that this one tags.
func TestPacketsWithoutTagsAreRefusedOnlyOnceAllKnow(t *testing.T) {
	self, a, b := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	m := membership{self: self}
	generation := uint64(0)
	at := func(d time.Duration) monotime.Time { return monotime.Time(1).Add(d) }
	list := func(when time.Duration, selfTags, aTags bool, others ...netip.Addr) {
		t.Helper()
		generation++
		piece := &wire.Nodes{WithTags: true, Generation: generation, Pieces: 1, Nodes: []wire.NodeInfo{
			{Name: "self", Addr: self, Tags: selfTags}, {Name: "a", Addr: a, Tags: aTags},
		}}
		for _, o := range others {
			piece.Nodes = append(piece.Nodes, wire.NodeInfo{Name: o.String(), Addr: o})
		}
		if !m.add(piece, at(when)) {
			t.Fatal("the list is not complete")
		}
	}
	check := func(when time.Duration, tags, all bool, wait time.Duration) {
		t.Helper()
		nodes, left := m.accepted(at(when))
		for _, n := range nodes {
			switch n.Addr {
			case a:
				if n.Tags != tags || n.TagsAll != all {
					t.Errorf("at %v: %+v", when, n)
				}
			case b:
				if n.Tags || n.TagsAll {
					t.Errorf("at %v: %+v, which does not tag", when, n)
				}
			}
		}
		if left != wait {
			t.Errorf("at %v: changes in %v, want %v", when, left, wait)
		}
	}
	list(0, false, true, b)
	check(time.Hour, true, false, 0) // a does not know whether this node has keys
	list(time.Hour, true, true, b)
	check(time.Hour, true, false, tagGrace)
	list(time.Hour+tagGrace/2, true, true) // another node has left
	check(time.Hour+tagGrace/2, true, false, tagGrace/2)
	check(time.Hour+tagGrace, true, true, 0)
	list(2*time.Hour, true, false) // back at the version before
	check(2*time.Hour, false, false, 0)
	list(3*time.Hour, true, true)
	check(3*time.Hour, true, false, tagGrace)
	list(3*time.Hour+1, false, true) // this node has lost its keys
	check(4*time.Hour, true, false, 0)
}

// Without ARP no node answers for a service address, also not for one that it announced before, and every node serves
// what reaches it.
func TestWithoutARPNodesServeWhatReachesThem(t *testing.T) {
	l := newLAN(t)
	for name, n := range l.nodes {
		awaitFrom(l, name, func(m *wire.Node) bool { return m.Addr.String() == n.config.NodeAddr })
	}
	l.sendNodes(1, "n1", "n2")
	// answered has the client send ARP requests, and reports whether a node answers.
	answered := func() bool {
		t.Helper()
		sh(t, "ip -n client neigh del %[1]v dev eth0 || true; ip netns exec client bash -c 'echo >/dev/udp/%[1]v/9'",
			vip.Addr())
		for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if l.neighbour() != "" {
				return true
			}
			if strings.Contains(sh(t, "ip -n client neigh show %v", vip.Addr()), "FAILED") {
				return false
			}
		}
		t.Fatal("the client's search for the VIP does not end")
		return false
	}
	for end := time.Now().Add(60 * time.Second); !answered(); {
		if time.Now().After(end) {
			t.Fatal("no node announces the VIP")
		}
	}
	for _, name := range []string{"n1", "n2"} {
		l.endNode(name, syscall.SIGTERM)
		l.nodes[name].config.NoARP = true
		l.startNode(name)
	}
	l.sendNodes(2, "n1", "n2")
	for _, name := range []string{"n1", "n2"} {
		if answered() {
			t.Fatalf("%s answers for the VIP", l.neighbour())
		}
		l.forget()
		sh(t, "ip -n client neigh replace %v lladdr %s dev eth0", vip.Addr(), l.hardware(name))
		l.ask()
		awaitFrom(l, name, func(m *wire.Wake) bool { return m.Service == vip })
	}
	if answered() {
		t.Errorf("%s answers for the VIP", l.neighbour())
	}
}

// nodesOf returns node-1 to node-n.
func nodesOf(n int) []scored {
	out := make([]scored, n)
	for i := range out {
		out[i] = score(fmt.Sprintf("node-%d", i+1))
	}
	return out
}

// vipNumber returns the i-th of many VIPs.
func vipNumber(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 46, byte(i >> 8), byte(i)})
}

func TestVIPsAreDividedEvenly(t *testing.T) {
	const vips = 10_000
	for _, n := range []int{1, 2, 3, 10, 50} {
		count := map[string]int{}
		for i := range vips {
			count[owner(vipNumber(i), nodesOf(n)).name]++
		}
		// The counts are binomial; a deviation of five standard deviations does not happen by chance.
		mean := vips / n
		most := mean + 5*int(math.Sqrt(float64(mean)))
		for _, node := range nodesOf(n) {
			if c := count[node.name]; c > most || c < 2*mean-most {
				t.Errorf("%d nodes: %s has %d of %d VIPs, want about %d", n, node.name, c, vips, mean)
			}
		}
	}
}

func TestOnlyTheVIPsOfALeavingNodeMove(t *testing.T) {
	all := nodesOf(7)
	without := append(append([]scored{}, all[:3]...), all[4:]...)
	gone := all[3].name
	moved := map[string]int{}
	for i := range 5000 {
		vip := vipNumber(i)
		before, after := owner(vip, all).name, owner(vip, without).name
		if before != gone && before != after {
			t.Fatalf("%v moves from %s to %s, although %s left", vip, before, after, gone)
		}
		if before == gone {
			moved[after]++
		}
	}
	if len(moved) != 6 {
		t.Errorf("the VIPs of the node that left are on %v, want all six others", moved)
	}
}

// Nodes of different versions must agree on the owner; docs/protocol/nodes.md has these examples.
func TestOwnerIsAsTheProtocolSpecifies(t *testing.T) {
	nodes := nodesOf(3)
	for vip, want := range map[string]string{
		"10.46.100.105": "node-3", "10.46.100.1": "node-1", "10.46.100.2": "node-1", "192.0.2.1": "node-2",
	} {
		got := owner(netip.MustParseAddr(vip), nodes).name
		reversed := []scored{nodes[2], nodes[1], nodes[0]}
		if again := owner(netip.MustParseAddr(vip), reversed).name; again != got {
			t.Errorf("%s: %s or %s, depending on the order of the nodes", vip, got, again)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", vip, got, want)
		}
	}
	if got := owner(vipNumber(1), nil).name; got != "" {
		t.Errorf("without nodes: %q", got)
	}
}

// What one node makes the controller say of it must not be worth more than that node.
func TestListOfNodesIsUsedWithoutItsBadEntries(t *testing.T) {
	m := membership{self: netip.MustParseAddr("192.0.2.9")}
	a := netip.MustParseAddr("192.0.2.1")
	list := &wire.Nodes{WithTags: true, Generation: 1, Pieces: 1, Nodes: []wire.NodeInfo{
		{Name: "a", Addr: a, Tags: true}, {Name: "six", Addr: netip.MustParseAddr("fd00::1"), Tags: true},
		{Name: "taker", Addr: a},
	}}
	if !m.add(list, 1) {
		t.Fatal("the list is not complete")
	}
	if m.accept(netip.MustParseAddr("fd00::2"), 1) {
		t.Error("a node without an IPv4 address was accepted")
	}
	if got, _ := m.accepted(1); !slices.Equal(got, []gate.Node{{Addr: a, Tags: true}}) {
		t.Errorf("accepted %+v", got)
	}
}
