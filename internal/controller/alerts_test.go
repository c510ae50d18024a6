// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

func TestServicesWhosePodsCannotSeeClientsSayWhy(t *testing.T) {
	w := newWorld(t, nil)
	requests := func(how v1alpha1.ClientAddress) func(*v1alpha1.WangellServiceSpec) {
		return func(s *v1alpha1.WangellServiceSpec) {
			s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest, ClientAddress: how}
		}
	}
	w.apply(newService("a", requests(v1alpha1.ClientAddressTransparent)),
		newService("b", requests(v1alpha1.ClientAddressHeader)))
	events := w.c.Subscribe(t.Context())
	w.c.ReportHiddenClients("no such right")
	message := func(name string) string { return w.status(name).Service.Status.Message }
	w.until("the status tells", func() bool { return strings.Contains(message("a"), "not possible here: no such right") })
	for e := range events {
		if e.Kind == status.EventReport && strings.Contains(e.Text, "no such right") {
			if e.Service != "default/a" || e.Severity != status.SeverityWarning {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	if m := message("b"); m != "" {
		t.Errorf("another service says %q", m)
	}
	w.c.ReportHiddenClients("")
	w.until("it is possible", func() bool { return message("a") == "" })
}

// Daemons get the rules for a service's sources with the service, and with each change; pods stay as they are.
func TestDaemonsGetTheRulesForSources(t *testing.T) {
	w := newWorld(t, nil)
	from := func(networks ...string) *v1alpha1.WangellService {
		return newService("a", func(s *v1alpha1.WangellServiceSpec) { s.AllowFrom = networks })
	}
	w.apply(from("10.0.0.0/9", "10.128.0.0/9"))
	a := w.warm("a")
	rules := func() string {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		s := w.d.table[a]
		text, _ := s.Sources.MarshalText()
		if s.Flags&wire.FlagSources == 0 {
			return "all"
		}
		return string(text)
	}
	if got := rules(); got != "+10.0.0.0/8" {
		t.Errorf("rules %q", got)
	}
	w.apply(from("192.0.2.0/24"))
	w.until("the rules have changed", func() bool { return rules() == "+192.0.2.0/24" })
	w.apply(from())
	w.until("all clients may connect", func() bool { return rules() == "all" })
	if _, started, stopped := w.rt.state(); len(started) != 1 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
}

// A client that a gate has denied shows in the events and in the status.
func TestDeniedClientsAreTold(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.vip("a")
	events := w.c.Subscribe(t.Context())
	w.d.send(&wire.Denied{Service: a, Total: 3, Source: netip.MustParseAddr("192.0.2.7")})
	for e := range events {
		if e.Kind == status.EventReport && e.Severity == status.SeverityWarning &&
			strings.HasPrefix(e.Text, "denied 192.0.2.7:") {
			break
		}
	}
	w.until("the status tells", func() bool {
		st := w.status("a")
		return st.Traffic.Denied == 3 && strings.Contains(st.Service.Status.Message, "3 connection requests denied")
	})
	if w.state("a") != "Cold" {
		t.Errorf("state %s", w.state("a"))
	}
}

// Whoever is denied, or a daemon that invents it, causes few events and no endless work; what is counted stays right.
func TestDeniedClientsAndAlertsCauseFewEvents(t *testing.T) {
	w := newCluster(t, nil)
	w.synced()
	a := w.put(newService("a"), 1)
	events := w.c.Subscribe(t.Context())
	const sent = 100
	for i := range uint64(sent) {
		w.d.send(&wire.Denied{Service: a, Total: i + 1, Source: netip.MustParseAddr("192.0.2.200")})
		w.d.send(&wire.Alert{Kind: wire.AlertNodeWakes, Over: true}) // of nothing
	}
	w.until("all are counted", func() bool { return w.status("a").Traffic.Denied == sent })
	n, over := 0, 0
	for done := false; !done; {
		select {
		case e := <-events:
			switch {
			case e.Reason == v1alpha1.EventDenied:
				n++
			case strings.Contains(e.Text, "no longer scarce"):
				over++
			}
		default:
			done = true
		}
	}
	// A machine that is so busy that the loop takes longer than the pause may show more than one.
	if n < 1 || n > sent/2 || over != 0 {
		t.Errorf("%d events for %d denials, %d ends of alerts that never began", n, sent, over)
	}
}

func TestAlertsOfADaemonAreLimited(t *testing.T) {
	b, now := alertBuckets{}, time.Unix(1e9, 0)
	count := func(session uint64) (n int) {
		for range 10 * maxPressures {
			if b.take(session, now) {
				n++
			}
		}
		return n
	}
	if n, m := count(1), count(2); n != maxPressures || m != maxPressures {
		t.Errorf("%d and %d at once, want %d each", n, m, maxPressures)
	}
	if now = now.Add(time.Minute); count(1) != 240 {
		t.Error("want 4 in a second")
	}
}
