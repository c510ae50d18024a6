// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// infosOf returns the list of nodes that a daemon has.
func infosOf(d *fakeDaemon) (list []wire.NodeInfo) {
	d.set(func(d *fakeDaemon) { list = slices.Clone(d.infos) })
	return list
}

// tagging returns a cluster with the nodes n1 and n2, which tag, and where the cluster has the node "stolen" at an
// address of its own.
func tagging(t *testing.T) *clusterWorld {
	w := newCluster(t, func(c *fakeCluster) {
		c.addrs = map[string][]netip.Addr{
			"n1": {nodeAddr("n1")}, "n2": {nodeAddr("n2")}, "stolen": {netip.MustParseAddr("192.0.2.66")},
		}
	})
	w.synced()
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		d.send(&wire.TagReady{})
		w.c.loop.call(func() {})
	}
	var first uint64
	w.c.loop.call(func() { first = w.c.receiver.nodes.tagger.now.First })
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		d.send(&wire.TagReady{First: first})
	}
	w.until("n1 and n2 tag", func() bool {
		list := infosOf(w.d)
		return len(list) == 2 && list[0].Tags && list[1].Tags
	})
	return w
}

// problems waits for a report that do causes.
func (w *clusterWorld) problems(do func(), part string) {
	w.t.Helper()
	events := w.c.Subscribe(w.t.Context())
	do()
	w.until("a report with "+part, func() bool {
		select {
		case e := <-events:
			return strings.Contains(e.Text, part)
		default:
			return false
		}
	})
}

// A node that reports the address of another one, and not that it tags, would make that one's packets valid without
// tags, for whoever sends from that address.
func TestNodeCannotTakeTheAddressOfAnother(t *testing.T) {
	for name, taken := range map[string]netip.Addr{
		"another node's": nodeAddr("n1"), "IPv6": netip.MustParseAddr("fd00::1"),
	} {
		t.Run(name, func(t *testing.T) {
			w := tagging(t)
			var stolen *fakeDaemon
			w.problems(func() {
				stolen = w.daemonOn("stolen", &wire.Node{Addr: taken})
				t.Cleanup(func() { stolen.client.Close() })
			}, "node stolen gets no packets of other nodes: its daemon says that its address is "+taken.String())
			stolen.send(&wire.TagReady{})
			stolen.send(&wire.PodReport{Event: uint8(runtime.PodNetworkReady), Service: "default/a", UID: "u", Addr: taken})
			w.untilDaemons(3)
			w.c.loop.call(func() { w.c.receiver.nodes.dirty = true; w.c.receiver.nodes.flush() })
			for _, n := range infosOf(w.d) {
				if n.Name == "stolen" || !n.Tags {
					t.Errorf("the list has %+v", n)
				}
			}
			w.cluster.mu.Lock()
			defer w.cluster.mu.Unlock()
			if len(w.cluster.saw) > 0 {
				t.Errorf("%+v was passed on", w.cluster.saw)
			}
			stolen.set(func(d *fakeDaemon) {
				if d.tagKeys != nil {
					t.Error("it has the keys of tags")
				}
			})
		})
	}
}

// A kubelet writes the addresses of its own Node. Where two Nodes have the same one, both tag.
func TestNodesWithTheSameAddressTag(t *testing.T) {
	w := tagging(t)
	w.cluster.mu.Lock()
	w.cluster.addrs["stolen"] = []netip.Addr{nodeAddr("n1")}
	w.cluster.mu.Unlock()
	stolen := w.daemonOn("stolen", &wire.Node{Addr: nodeAddr("n1")})
	t.Cleanup(func() { stolen.client.Close() })
	w.until("n2 has three nodes", func() bool { return len(infosOf(w.d2)) == 3 })
	for _, n := range infosOf(w.d2) {
		if !n.Tags {
			t.Errorf("%+v need not tag", n)
		}
	}
}

// The key of a node outlives its Node.
func TestNodeThatTheClusterDoesNotHaveIsNoMember(t *testing.T) {
	w := tagging(t)
	w.problems(func() {
		d := w.daemonOn("deleted", &wire.Node{Addr: netip.MustParseAddr("192.0.2.7")})
		t.Cleanup(func() { d.client.Close() })
	}, "node deleted gets no packets of other nodes: the cluster has no such node")
	if list := infosOf(w.d); len(list) != 2 {
		t.Errorf("the list is %+v", list)
	}
}
