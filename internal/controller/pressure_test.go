// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

var attacker = netip.MustParsePrefix("192.0.2.0/24")

// awaitPressure returns the next event of a pressure.
func awaitPressure(t *testing.T, events <-chan status.Event) status.Event {
	t.Helper()
	for e := range events {
		if e.Kind == status.EventPressure {
			return e
		}
	}
	t.Fatal("no event")
	return status.Event{}
}

// A budget of wakes that clients exceed shows in an event of the service concerned and in its status, until it is over
// or the daemon is gone.
func TestSpentBudgetIsToldOfItsService(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"), newService("never", func(s *v1alpha1.WangellServiceSpec) {
		s.WakeProof = v1alpha1.WakeProofNever
	}))
	a := w.vip("a")
	events := w.c.Subscribe(t.Context())
	for _, c := range []struct {
		kind wire.AlertKind
		name string
		text string
		node bool // a node's event as well
	}{
		{wire.AlertServiceWakes, "a", "node n1: clients exceed the budget of wakes of the service, " +
			"one of them in 192.0.2.0/24: they have to prove where they are", false},
		{wire.AlertSourceWakes, "never", "node n1: clients in 192.0.2.0/24 exceed their budget of wakes: " +
			"their connection requests are dropped", false},
		{wire.AlertProvenWakes, "b", "node n1: clients in 192.0.2.0/24 exceed the budget of wakes of those that have " +
			"proven where they are: their connection requests to sleeping services are dropped", false},
		{wire.AlertNodeWakes, "b", "node n1: clients exceed the budget of wakes of the node, " +
			"one of them in 192.0.2.0/24: they have to prove where they are", true},
	} {
		w.d.send(&wire.Alert{Kind: c.kind, Service: w.vip(c.name), Source: attacker})
		e := awaitPressure(t, events)
		if e.Service != v1alpha1.Key("default/"+c.name) || e.Node != "n1" || e.Severity != status.SeverityWarning ||
			e.Reason != v1alpha1.EventWakesLimited || e.Text != c.text {
			t.Errorf("%v: %+v, want %q", c.kind, e, c.text)
		}
		if c.node {
			if e := awaitPressure(t, events); e.Service != "" || e.Node != "n1" || e.Text != c.text {
				t.Errorf("%v: %+v, want one of the node", c.kind, e)
			}
		}
		w.until(c.name+" tells of it", func() bool {
			st := w.status(c.name)
			return st.Pressure.Reason == v1alpha1.EventWakesLimited && strings.Contains(st.Pressure.Message, c.text) &&
				strings.Contains(st.Service.Status.Message, c.text)
		})
	}
	if got := w.status("b").Pressure.Message; strings.Count(got, "node n1:") != 2 || !strings.Contains(got, "; ") {
		t.Errorf("two of one service: %q", got)
	}
	if len(w.c.Pressure()) != 0 {
		t.Errorf("of the node: %v", w.c.Pressure())
	}
	w.d.send(&wire.Alert{Kind: wire.AlertServiceWakes, Service: a, Source: attacker, Over: true})
	w.until("it is over", func() bool {
		st := w.status("a")
		return st.Pressure == (status.Pressure{}) && st.Service.Status.Message == ""
	})
	if w.status("b").Pressure == (status.Pressure{}) {
		t.Error("that of another service is over, too")
	}
	w.d.client.Close()
	w.until("nothing is known without a daemon", func() bool { return w.status("b").Pressure == (status.Pressure{}) })
}

// A table of a gate that is almost full shows in an event of the node and in the status of the services in use. Their
// status changes with it, that of sleeping services does not.
func TestAlmostFullTableIsToldOfItsNode(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("warm"), newService("cold"))
	w.warm("warm")
	a := w.vip("warm")
	events := w.c.Subscribe(t.Context())
	changed := func() string {
		t.Helper()
		keys, err := w.c.Changed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(keys)
	}
	changed() // until now
	w.d.send(&wire.Alert{Kind: wire.AlertFlows, Used: 80, Size: 100})
	want := status.Pressure{
		Reason:  v1alpha1.EventTableAlmostFull,
		Message: "node n1: the gate's table flows is almost full: 80 of 100 entries (--flows)",
	}
	if e := awaitPressure(t, events); e.Service != "" || e.Node != "n1" || e.Reason != want.Reason ||
		e.Text != want.Message {
		t.Errorf("%+v, want %+v", e, want)
	}
	if got := changed(); got != "[default/warm]" {
		t.Errorf("changed %s", got)
	}
	if got := w.status("warm").Pressure; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := w.status("cold").Pressure; got != (status.Pressure{}) {
		t.Errorf("of a sleeping service: %+v", got)
	}
	if got := w.c.Pressure(); len(got) != 1 || got[0] != want {
		t.Errorf("of nodes: %+v", got)
	}
	w.d.send(&wire.Alert{Kind: wire.AlertFlows, Used: 80, Size: 100, Over: true})
	w.until("it is over", func() bool {
		return w.status("warm").Pressure == (status.Pressure{}) && len(w.c.Pressure()) == 0
	})
	if got := changed(); got != "[default/warm]" {
		t.Errorf("changed %s", got)
	}
	// The share of one service is its own, and that of a client the node's.
	w.d.send(&wire.Alert{Kind: wire.AlertServiceFlows, Service: a, Used: 8, Size: 9})
	text := fmt.Sprintf("node n1: service address %v has 8 of the 9 connections that one may have "+
		"(--max-flows-per-service)", a)
	for _, key := range []v1alpha1.Key{"default/warm", ""} {
		if e := awaitPressure(t, events); e.Service != key || e.Text != text {
			t.Errorf("%+v, want %q of %q", e, text, key)
		}
	}
	w.d.send(&wire.Alert{Kind: wire.AlertSourceFlows, Source: netip.MustParsePrefix("192.0.2.1/32"), Used: 8, Size: 9})
	if e := awaitPressure(t, events); e.Service != "" || e.Text != "node n1: client 192.0.2.1 has 8 of the 9 connections "+
		"that one address may have (--max-flows-per-source)" {
		t.Errorf("%+v", e)
	}
}

// A summary names a few, and how many more there are. A daemon cannot make the controller remember any number.
func TestPressuresAreBounded(t *testing.T) {
	p := newPressures()
	a := netip.MustParseAddrPort("10.46.100.1:80")
	key := func(session uint64) pressureKey { return pressureKey{session, wire.AlertServiceWakes, a} }
	for i := range uint64(5) {
		p.set(key(i), status.Pressure{Reason: v1alpha1.EventWakesLimited, Message: fmt.Sprint("text ", i)})
	}
	want := status.Pressure{Reason: v1alpha1.EventWakesLimited, Message: "text 0; text 1; text 2; 2 more"}
	if got := p.own[a].summary; got != want {
		t.Errorf("%+v", got)
	}
	for i := range uint64(5) {
		for _, k := range p.ofSession(i) {
			p.remove(k)
		}
	}
	if len(p.own)+len(p.count) != 0 {
		t.Errorf("left: %v, %v", p.own, p.count)
	}
	w := newWorld(t, nil)
	w.untilDaemons(1)
	for i := range 2 * maxPressures {
		w.d.send(&wire.Alert{
			Kind: wire.AlertServiceWakes, Service: netip.AddrPortFrom(a.Addr(), uint16(1+i)), Source: attacker,
		})
	}
	w.until("as many as are allowed are known", func() (ok bool) {
		w.c.loop.call(func() { ok = len(w.c.engine.pressures.own) == maxPressures })
		return ok
	})
	w.apply(newService("a")) // handled after them
	w.vip("a")
	w.c.loop.call(func() {
		if n := len(w.c.engine.pressures.own); n != maxPressures {
			t.Errorf("%d are known", n)
		}
	})
}
