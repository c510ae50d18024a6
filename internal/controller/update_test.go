// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

func TestUpdateReplacesThePodWithoutAGap(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	w.d.set(func(d *fakeDaemon) { d.open = 1 })

	// A change that does not concern pods changes only the table.
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.IdleTimeout = 7 }))
	w.until("the daemon has the timeout", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return w.d.table[a].IdleSeconds == 7
	})
	newer := newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"-v"}; s.TargetPort = 9090 })
	w.apply(newer)
	w.until("switched", func() bool { return w.d.pods(a) == " draining serving" })
	if _, started, stopped := w.rt.state(); len(started) != 2 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
	if b := w.d.backend(a, 0); b.Addr.Port() != 8080 {
		t.Errorf("the old pod's port became %v", b.Addr)
	}
	if b := w.d.backend(a, 1); b.Addr.Port() != 9090 {
		t.Errorf("the new pod's port is %v", b.Addr)
	}
	if w.state("a") != "Warm" {
		t.Errorf("state %s", w.state("a"))
	}
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("a-1"), OpenFlows: 0, NewFlows: 9,
		LastPacket: monotime.Now()}}})
	w.until("the old pod is gone", func() bool { return w.d.pods(a) == " serving" })
	if running, _, _ := w.rt.state(); len(running) != 1 || running[0] != "a-2" {
		t.Errorf("running %v", running)
	}
	// Applied once more, nothing happens.
	w.apply(newer)
	if _, started, _ := w.rt.state(); len(started) != 2 {
		t.Errorf("started %v", started)
	}
}

func TestRemovedServiceLeavesNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"))
	a, b := w.warm("a"), w.vip("b")
	w.apply()
	w.until("the table is empty", func() bool { return !w.d.has(a) && !w.d.has(b) })
	w.until("nothing runs", func() bool { r, _, _ := w.rt.state(); return len(r) == 0 && len(w.c.Status()) == 0 })
	w.until("forgotten", func() bool { w.rt.mu.Lock(); defer w.rt.mu.Unlock(); return len(w.rt.forgot) == 2 })
	w.d.syn(a)
	w.until("refused", func() bool { r := w.d.reasons(a); return len(r) > 0 && r[len(r)-1] == "there is no such service" })
}

func TestRemovedServiceRefusesParkedClients(t *testing.T) {
	w := newWorld(t, nil)
	w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error { <-ctx.Done(); return ctx.Err() }
	w.apply(newService("a"))
	a := w.vip("a")
	w.d.syn(a)
	w.untilState("a", "Waking")
	w.apply()
	w.until("refused and gone", func() bool { return len(w.d.reasons(a)) == 1 && !w.d.has(a) })
	if got := w.d.reasons(a)[0]; got != "the service was removed" {
		t.Errorf("refused because %q", got)
	}
}

func TestServiceAddedAgainBeginsOnceItsOldPodIsGone(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	gate := make(chan struct{})
	w.rt.onStop = func(context.Context, string) error { <-gate; return nil }
	w.apply()
	w.untilState("a", "Stopping")
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Port = 81 }))
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Port = 82 }))
	if w.state("a") != "Stopping" {
		t.Errorf("state %s", w.state("a"))
	}
	close(gate)
	again := netip.AddrPortFrom(a.Addr(), 82)
	w.until("it is back", func() bool { return w.d.has(again) && !w.d.has(a) && w.state("a") == "Cold" })
	w.warm("a")
}

func TestServicesExchangeTheirAddresses(t *testing.T) {
	at := func(ip string) func(*v1alpha1.WangellServiceSpec) {
		return func(s *v1alpha1.WangellServiceSpec) { s.Address = ip }
	}
	w := newWorld(t, nil)
	w.apply(newService("a", at("10.46.100.10")), newService("b", at("10.46.100.20")))
	a, b := w.warm("a"), w.warm("b")
	if a != netip.MustParseAddrPort("10.46.100.10:80") {
		t.Fatalf("a has %v", a)
	}
	w.apply(newService("a", at("10.46.100.20")), newService("b", at("10.46.100.10")))
	w.until("the pods changed places", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		x, y := w.d.backends[a], w.d.backends[b]
		return len(x.Pods) == 1 && len(y.Pods) == 1 && x.Pods[0].PodID == wireID("b-2") && y.Pods[0].PodID == wireID("a-1")
	})
	// A new service takes the address of one that is still going down.
	gate := make(chan struct{})
	w.rt.onStop = func(context.Context, string) error { <-gate; return nil }
	w.apply(newService("b", at("10.46.100.10")), newService("c", at("10.46.100.20")))
	w.until("c has a's address", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return w.d.table[b].Name == "default/c" && len(w.d.backends[b].Pods) == 0
	})
	w.warm("c")
	close(gate)
	w.until("a is gone", func() bool { return len(w.c.Status()) == 2 })
	if !w.d.has(b) || w.d.pods(b) != " serving" {
		t.Error("the end of a took c's address from the table")
	}
}

// Daemons learn that a service gets another address before their table says so, and for how long its connections at the
// old one may go on. The pods stay.
func TestServiceThatChangesItsAddressKeepsItsPodsAndConnections(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	first := w.warm("a")
	port := func(s *v1alpha1.WangellServiceSpec) { s.Port, s.TargetPort = 81, 8080 }
	elsewhere := func(s *v1alpha1.WangellServiceSpec) {
		port(s)
		drain := int64(7)
		s.Address, s.DrainTimeout = "10.46.100.77", &drain
	}
	second, third := netip.AddrPortFrom(first.Addr(), 81), netip.MustParseAddrPort("10.46.100.77:81")
	for _, to := range []struct {
		addr   netip.AddrPort
		change func(*v1alpha1.WangellServiceSpec)
		millis uint32
	}{{second, port, 30_000}, {third, elsewhere, 7_000}} {
		from := w.vip("a")
		w.apply(newService("a", to.change))
		w.until("the pod has the new address", func() bool { return w.d.pods(to.addr) == " serving" && !w.d.has(from) })
		var moved []*wire.Moved
		w.d.set(func(d *fakeDaemon) { moved, d.moved = d.moved, nil })
		if len(moved) != 1 || *moved[0] != (wire.Moved{From: from, To: to.addr, DrainMillis: to.millis}) {
			t.Errorf("told of %+v", moved)
		}
		if r := w.d.reasons(from); len(r) != 0 {
			t.Errorf("clients of a warm service are refused: %q", r)
		}
		if b := w.d.backend(to.addr, 0); b.PodID != wireID("a-1") {
			t.Errorf("another pod serves: %+v", b)
		}
	}
	if _, started, stopped := w.rt.state(); len(started) != 1 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}

	// Another service takes the address at once: nothing goes on there.
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { elsewhere(s); s.Address = "10.46.100.78" }),
		newService("b", elsewhere))
	w.until("b has it", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return w.d.table[third].Name == "default/b"
	})
	w.d.set(func(d *fakeDaemon) {
		if len(d.moved) != 0 {
			t.Errorf("told of %+v", d.moved)
		}
	})
}

func TestUpdateRefusesWhatCannotBe(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	at := func(s *v1alpha1.WangellServiceSpec) { s.Address = "10.46.100.2" } // that of a
	cases := map[string][]*v1alpha1.WangellService{
		"a service given twice":         {newService("a"), newService("a")},
		"an address in use":             {newService("a"), newService("b", at)},
		"an address given twice":        {newService("b", at), newService("c", at)},
		"an address that is not IPv4":   {newService("d", func(s *v1alpha1.WangellServiceSpec) { s.Address = "fd00::1" })},
		"an address kept by its holder": {newService("b", at), newService("a")},
	}
	for name, services := range cases {
		if err := w.tryApply(services...); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if st := w.c.Status(); len(st) != 1 || st[0].Service.Name != "a" {
			t.Errorf("%s: %d services after a refusal", name, len(st))
		}
	}
}

// A service for which the gates have no room is refused with what to do, and the others stay as they are.
func TestServicesBeyondTheGatesRoomAreRefused(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxServices = 2 })
	w.apply(newService("a"), newService("b"))
	err := w.tryApply(newService("a"), newService("b"), newService("c"))
	if err == nil || !strings.Contains(err.Error(), "room for 2 services") ||
		!strings.Contains(err.Error(), "--services") {
		t.Errorf("a third service: %v", err)
	}
	if st := w.c.Status(); len(st) != 2 {
		t.Errorf("%d services after a refusal", len(st))
	}
	w.apply(newService("a"), newService("c"))
}
