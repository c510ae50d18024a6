// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"testing"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestDaemonThatRestartsGetsThePodsAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"))
	a := w.warm("a")
	w.d.client.Close()
	w.d = w.daemon()
	w.until("it has the pods again", func() bool { return w.d.pods(a) == " serving" })
	// A daemon that refers to a pod that does not exist gets the list of pods.
	w.d.set(func(d *fakeDaemon) { clear(d.backends) })
	b := w.vip("b")
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: b, PodID: 4711}}})
	w.until("it has an empty list", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return w.d.backends[b] != nil && len(w.d.backends[b].Pods) == 0
	})
	w.d.send(&wire.Listening{Service: a, PodID: 4711})
	w.until("it has the pods", func() bool { return w.d.pods(a) == " serving" })
}

func TestPodReportsAndNodesArePassedOn(t *testing.T) {
	w := newCluster(t, nil)
	w.synced()
	both := []string{"n1=192.0.2.1", "n2=192.0.2.2"}
	nodes := func(d *fakeDaemon) (n []string) {
		d.set(func(d *fakeDaemon) { n = slices.Clone(d.nodes) })
		return n
	}
	w.until("both have both", func() bool { return slices.Equal(nodes(w.d), both) && slices.Equal(nodes(w.d2), both) })
	w.d2.send(&wire.PodReport{Event: uint8(runtime.PodContainerStarted), Service: "default/a", UID: "u1", Name: "a-x",
		Container: "c",
		Addr:      netip.MustParseAddr("10.1.0.5"), Netns: "/ns/5", SpecHash: "h", At: 77, Code: 3})
	w.until("seen", func() bool { w.cluster.mu.Lock(); defer w.cluster.mu.Unlock(); return len(w.cluster.saw) == 1 })
	want := runtime.PodReport{
		Event: runtime.PodContainerStarted, Name: "a-x", Container: "c", At: 77, Code: 3,
		Pod: runtime.Pod{ID: "u1", Service: "default/a", SpecHash: "h", Addr: netip.MustParseAddr("10.1.0.5"),
			Netns: "/ns/5",
			Node:  "n2", NodeAddr: nodeAddr("n2"), Started: 77},
	}
	if got := w.cluster.saw[0]; got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// A node whose daemon restarts is kept; one that is gone is not.
	if err := w.d2.client.Leave(); err != nil {
		t.Fatal(err)
	}
	w.untilDaemons(1)
	w.d.client.Close()
	w.d = w.daemonOn("n1", &wire.Node{Addr: nodeAddr("n1")})
	w.until("it gets both", func() bool { return slices.Equal(nodes(w.d), both) })
	w.d2 = w.daemonOn("n2", &wire.Node{Addr: nodeAddr("n2")})
	w.until("it gets both, too", func() bool { return slices.Equal(nodes(w.d2), both) })
	w.d2.client.Close()
	w.until("n1 is alone", func() bool { return slices.Equal(nodes(w.d), both[:1]) })
}

// After all daemons were lost at once, the first one back must not be told that it is alone: it would get all VIPs.
func TestFirstDaemonBackDoesNotGetAllVIPs(t *testing.T) {
	w := newCluster(t, nil)
	w.synced()
	both := []string{"n1=192.0.2.1", "n2=192.0.2.2"}
	w.until("n1 has both", func() (know bool) {
		w.d.set(func(d *fakeDaemon) { know = slices.Equal(d.nodes, both) })
		return know
	})
	w.d.client.Close()
	w.d2.client.Close()
	w.untilDaemons(0)
	w.d = w.daemonOn("n1", &wire.Node{Addr: nodeAddr("n1")})
	w.untilDaemons(1)
	w.c.loop.call(func() { w.c.receiver.nodes.flush() })
	w.d2 = w.daemonOn("n2", &wire.Node{Addr: nodeAddr("n2")})
	var first []string
	w.until("n1 gets a list", func() bool {
		w.d.set(func(d *fakeDaemon) { first = slices.Clone(d.nodes) })
		return len(first) > 0
	})
	if !slices.Equal(first, both) {
		t.Errorf("the first list of n1: %v", first)
	}
}
