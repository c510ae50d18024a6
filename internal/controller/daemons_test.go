// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"testing"
	"time"

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

// A node whose clock is up to half a period slow has the key that the others use, and uses one that they have.
func TestTagKeysChangeWithoutAGap(t *testing.T) {
	key := wire.Key{1}
	at := time.Date(2026, 11, 23, 4, 5, 6, 7, time.UTC)
	used := func(k *wire.TagKeys) (uint64, [wire.TagKeySize]byte) {
		if k.Second {
			return k.First + 1, k.Keys[1]
		}
		return k.First, k.Keys[0]
	}
	has := func(k *wire.TagKeys, number uint64, key [wire.TagKeySize]byte) bool {
		return number == k.First && k.Keys[0] == key || number == k.First+1 && k.Keys[1] == key
	}
	seen := map[[wire.TagKeySize]byte]bool{}
	before, next := tagKeysAt(key, at)
	for range 10 {
		if same, _ := tagKeysAt(key, next.Add(-1)); *same != *before {
			t.Errorf("the keys change before %v", next)
		}
		now, later := tagKeysAt(key, next)
		if *now == *before || later.Sub(next) != tagPeriod/2 {
			t.Errorf("at %v: %+v, next change at %v", next, now, later)
		}
		for _, pair := range [][2]*wire.TagKeys{{before, now}, {now, before}} {
			if number, key := used(pair[0]); !has(pair[1], number, key) {
				t.Errorf("at %v: key %d is not valid for all", next, number)
			}
		}
		number, k := used(now)
		if old, _ := used(before); old != number {
			seen[k] = true
		}
		before, next = now, later
	}
	if len(seen) != 5 {
		t.Errorf("%d keys in 10 half periods, want 5", len(seen))
	}
	other, _ := tagKeysAt(wire.Key{2}, at)
	if mine, _ := tagKeysAt(key, at); *mine == *other {
		t.Error("the keys do not depend on the wire's key")
	}
}

// A daemon of the version before neither knows of tags nor of the messages about them.
func TestNodesTagOnceTheirDaemonHasTheKeys(t *testing.T) {
	w := newWorld(t, nil)
	w.apply()
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }
	old := w.daemonOn("n2", &wire.Node{Addr: addr(2)})
	able := w.daemonOn("n3", &wire.TagReady{}, &wire.Node{Addr: addr(3)})
	list := func(d *fakeDaemon, want ...wire.NodeInfo) func() bool {
		return func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.infos) == len(want) && func() bool {
				for i := range want {
					if d.infos[i] != want[i] {
						return false
					}
				}
				return true
			}()
		}
	}
	n2, n3 := wire.NodeInfo{Name: "n2", Addr: addr(2)}, wire.NodeInfo{Name: "n3", Addr: addr(3)}
	w.until("both have the list", func() bool { return list(old, n2, n3)() && list(able, n2, n3)() })
	keysOf := func(d *fakeDaemon) (keys *wire.TagKeys) {
		w.until("keys", func() bool { d.set(func(d *fakeDaemon) { keys = d.tagKeys }); return keys != nil })
		return keys
	}
	keys := keysOf(able)
	able.send(&wire.TagReady{First: keys.First})
	tags := n3
	tags.Tags = true
	w.until("n3 tags", list(able, n2, tags))
	listed := list(old, n2, n3)()
	var withTags bool
	able.set(func(d *fakeDaemon) { withTags = d.withTags })
	old.set(func(d *fakeDaemon) {
		if !listed || d.tagKeys != nil || d.withTags || !withTags {
			t.Errorf("a daemon that does not know of tags got %+v, keys %v", d.infos, d.tagKeys)
		}
	})

	// A daemon that restarts, with the keys still in its gate, tags from the start.
	able.client.Leave()
	again := w.daemonOn("n3", &wire.TagReady{First: keys.First}, &wire.Node{Addr: addr(3)})
	w.until("n3 tags after a restart", list(again, n2, tags))
	// n2 is upgraded.
	old.client.Leave()
	upgraded := w.daemonOn("n2", &wire.TagReady{}, &wire.Node{Addr: addr(2)})
	if got := keysOf(upgraded); *got != *keys {
		t.Errorf("n2 has keys %+v, n3 %+v", got, keys)
	}
	upgraded.send(&wire.TagReady{First: keys.First})
	n2.Tags = true
	w.until("both tag", func() bool { return list(again, n2, tags)() && list(upgraded, n2, tags)() })
	// And goes back to the version before.
	upgraded.client.Leave()
	w.daemonOn("n2", &wire.Node{Addr: addr(2)})
	n2.Tags = false
	w.until("n2 does not tag", list(again, n2, tags))
}

func TestGateWithOldKeysDoesNotTag(t *testing.T) {
	g := tagger{now: &wire.TagKeys{First: 10}}
	for first, want := range map[uint64]bool{0: false, 8: false, 9: true, 10: true, 11: true, 12: false} {
		if got := g.ready(first); got != want {
			t.Errorf("keys from %d on: ready is %v", first, got)
		}
	}
	if (&tagger{}).ready(10) {
		t.Error("ready before there are keys")
	}
}
