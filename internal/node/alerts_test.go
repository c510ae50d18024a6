// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// sentAlerts collects what alerts send.
type sentAlerts struct {
	*alerts
	now  time.Time
	sent []string
}

func newSentAlerts() *sentAlerts {
	return &sentAlerts{alerts: &alerts{active: map[alertKey]*alert{}}, now: time.Unix(1000, 0)}
}

func (s *sentAlerts) send(m wire.Message) {
	a := m.(*wire.Alert)
	text := fmt.Sprintf("%v", a.Kind)
	if a.Kind.OfWakes() {
		text += fmt.Sprintf(" %v by %v", a.Service, a.Source)
	} else {
		text += fmt.Sprintf(" %d/%d", a.Used, a.Size)
	}
	if a.Over {
		text += " over"
	}
	s.sent = append(s.sent, text)
}

// want checks what was sent since the last call.
func (s *sentAlerts) want(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.sent, want) {
		t.Errorf("at %v: sent %q, want %q", s.now, s.sent, want)
	}
	s.sent = nil
}

// A table or share that becomes almost full is reported once, and again only after it had room for a minute.
func TestAlmostFullTablesAreReported(t *testing.T) {
	s := newSentAlerts()
	for i, c := range []struct {
		after time.Duration
		used  uint32
		begun bool
		want  []string
	}{
		{0, 79, false, nil},
		{1, 80, true, []string{"flows_per_source 80/100"}},
		{1, 100, false, nil},
		{1, 69, false, nil},
		{58, 69, false, nil},
		{0, 90, false, nil}, // it comes and goes: one alert
		{59, 75, false, nil},
		{59, 69, false, nil}, // it was above 70 % a minute ago
		{1, 69, false, []string{"flows_per_source 80/100 over"}},
		{1, 79, false, nil},
		{1, 81, true, []string{"flows_per_source 81/100"}},
	} {
		s.now = s.now.Add(c.after * time.Second)
		begun := s.seeFills([]gate.Fill{
			{Table: "parked", Used: 1, Size: 100},
			{Table: "flows_per_source", Source: netip.MustParsePrefix("192.0.2.1/32"), Used: c.used, Size: 100},
		}, s.now, s.send)
		if len(begun) > 0 != c.begun {
			t.Errorf("step %d: begun %v", i, begun)
		}
		s.expire(s.now, s.send)
		s.want(t, c.want...)
	}
	s.sendAll(s.send) // to another controller
	s.want(t, "flows_per_source 81/100")
	if n := s.counts(); len(n) != 1 || n[wire.AlertSourceFlows] != 1 {
		t.Errorf("counts %v", n)
	}
}

// A budget of wakes that clients exceed is reported once a minute with the newest source, and over a minute after the
// last of them. A flood of many services causes a limited number of alerts.
func TestSpentBudgetsAreReported(t *testing.T) {
	s := newSentAlerts()
	a, b := netip.MustParseAddrPort("10.46.100.1:80"), netip.MustParseAddrPort("10.46.100.2:80")
	spend := func(after time.Duration, kind wire.AlertKind, of netip.AddrPort, source string) {
		s.now = s.now.Add(after)
		s.expire(s.now, s.send)
		s.see(wire.Alert{Kind: kind, Service: of, Source: netip.MustParsePrefix(source)}, s.now, s.send)
	}
	spend(0, wire.AlertServiceWakes, a, "192.0.2.0/24")
	spend(0, wire.AlertServiceWakes, b, "192.0.2.0/24")
	spend(0, wire.AlertNodeWakes, b, "192.0.2.0/24")
	s.want(t, "wakes_service 10.46.100.1:80 by 192.0.2.0/24", "wakes_service 10.46.100.2:80 by 192.0.2.0/24",
		"wakes_node 10.46.100.2:80 by 192.0.2.0/24")
	spend(30*time.Second, wire.AlertServiceWakes, a, "198.51.100.0/24")
	s.want(t)
	spend(29*time.Second, wire.AlertServiceWakes, a, "203.0.113.0/24")
	s.want(t)
	spend(time.Second, wire.AlertServiceWakes, a, "203.0.113.0/24")
	s.want(t, "wakes_node 10.46.100.2:80 by 192.0.2.0/24 over", "wakes_service 10.46.100.2:80 by 192.0.2.0/24 over",
		"wakes_service 10.46.100.1:80 by 203.0.113.0/24")
	s.forget(b, s.send)
	s.want(t)
	s.forget(a, s.send) // the service is removed
	s.want(t, "wakes_service 10.46.100.1:80 by 203.0.113.0/24 over")

	for i := range 1000 {
		spend(0, wire.AlertServiceWakes, netip.AddrPortFrom(a.Addr(), uint16(1+i)), "192.0.2.0/24")
	}
	if len(s.sent) != maxWakeAlerts || s.counts()[wire.AlertServiceWakes] != maxWakeAlerts {
		t.Errorf("%d alerts, want %d", len(s.sent), maxWakeAlerts)
	}
}

// A client that exceeds a budget of wakes is reported to the controller, and so is a table that is almost full; both
// again to the next controller.
func TestControllerHearsWhatIsScarce(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.WakeBudgets = gate.WakeBudgets{Source: gate.Budget{Burst: 1, PerSecond: 1.0 / 3600}}
		c.Sizes = gate.Sizes{Services: 5}
	})
	other := netip.AddrPortFrom(vip.Addr(), 81)
	table := []wire.Service{hello(0)}
	for i := range 3 {
		s := hello(0)
		s.Addr = netip.AddrPortFrom(vip.Addr(), uint16(81+i))
		table = append(table, s)
	}
	if err := w.server.SetServices(table); err != nil {
		t.Fatal(err)
	}
	full := wire.Alert{Kind: wire.AlertServices, Used: 4, Size: 5}
	if got := await[*wire.Alert](w); *got != full {
		t.Errorf("got %+v, want %+v", got, full)
	}
	woken := make(chan error, 2)
	wake := func(a netip.AddrPort) {
		go func() { woken <- connectFrom(clientNet, a) }()
		if got := await[*wire.Wake](w); got.Service != a {
			t.Errorf("a wake of %v, want %v", got.Service, a)
		}
	}
	wake(vip)
	go func() { woken <- connectFrom(clientNet, other) }()
	spent := wire.Alert{
		Kind: wire.AlertSourceWakes, Service: other, Source: netip.MustParsePrefix("10.46.200.0/24"),
	}
	if got := await[*wire.Alert](w); *got != spent {
		t.Errorf("got %+v, want %+v", got, spent)
	}
	if got := await[*wire.Wake](w); got.Service != other { // its client has proven where it is
		t.Errorf("a wake of %v", got.Service)
	}
	before := w.peer()
	w.server.Disconnect(before)
	again := []wire.Alert{*await[*wire.Alert](w), *await[*wire.Alert](w)}
	if !slices.Equal(again, []wire.Alert{spent, full}) {
		t.Errorf("in the next session: %+v", again)
	}
	for _, a := range []netip.AddrPort{vip, other} {
		w.send(&wire.Refuse{Service: a, Reason: "enough"})
		<-woken
	}
}

// connectFrom connects to an address from a named network namespace, and closes the connection.
func connectFrom(name string, to netip.AddrPort) error {
	ns, err := netns.GetFromName(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	return inNetns(ns, func() error {
		c, err := net.DialTimeout("tcp4", to.String(), time.Minute)
		if err != nil {
			return err
		}
		return c.Close()
	})
}
