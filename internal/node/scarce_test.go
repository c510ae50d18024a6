// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

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
