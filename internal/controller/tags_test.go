// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"testing"
	"time"

	"wangell.loutres.me/internal/wire"
)

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
	w.until("keys", func() bool { able.mu.Lock(); defer able.mu.Unlock(); return able.tagKeys != nil })
	able.send(&wire.TagReady{First: able.tagKeys.First})
	tags := n3
	tags.Tags = true
	w.until("n3 tags", list(able, n2, tags))
	if !list(old, n2, n3)() || old.tagKeys != nil || old.withTags || !able.withTags {
		t.Errorf("a daemon that does not know of tags got %+v, keys %v", old.infos, old.tagKeys)
	}

	// A daemon that restarts, with the keys still in its gate, tags from the start.
	able.client.Leave()
	again := w.daemonOn("n3", &wire.TagReady{First: able.tagKeys.First}, &wire.Node{Addr: addr(3)})
	w.until("n3 tags after a restart", list(again, n2, tags))
	// n2 is upgraded.
	old.client.Leave()
	upgraded := w.daemonOn("n2", &wire.TagReady{}, &wire.Node{Addr: addr(2)})
	w.until("keys for n2",
		func() bool { upgraded.mu.Lock(); defer upgraded.mu.Unlock(); return upgraded.tagKeys != nil })
	if *upgraded.tagKeys != *able.tagKeys {
		t.Errorf("n2 has keys %+v, n3 %+v", upgraded.tagKeys, able.tagKeys)
	}
	upgraded.send(&wire.TagReady{First: upgraded.tagKeys.First})
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
