// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
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
			out = append(out, wire.NodeInfo{Name: n})
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
