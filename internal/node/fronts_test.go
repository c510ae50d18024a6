// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

func TestEnvoyHasSettledDownWhileItHasAllClients(t *testing.T) {
	const begin = monotime.Time(1e12)
	a, b := netip.MustParseAddr("10.46.128.1"), netip.MustParseAddr("10.46.128.2")
	var s settled
	check := func(at netip.Addr, all bool, after, want time.Duration, wantOK bool) {
		t.Helper()
		s = s.after(at, all, begin.Add(after))
		if got, ok := s.pause(begin.Add(after)); ok != wantOK || ok && got != want {
			t.Errorf("after %v: %v, %v, want %v, %v", after, got, ok, want, wantOK)
		}
	}
	check(a, false, 0, 0, false)
	check(a, true, time.Second, frontSettles, true)
	check(a, true, 2*time.Second, frontSettles-time.Second, true)
	check(a, true, time.Minute, 0, true)
	check(b, false, 2*time.Minute, 0, false) // another one takes over
	check(b, true, 3*time.Minute, frontSettles, true)
	check(a, true, 4*time.Minute, frontSettles, true) // and is gone
}

func TestYoungestEnvoyServes(t *testing.T) {
	f := newFronts()
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	envoyAt := func(addr string, age time.Duration) proxy {
		p := envoy.Proxy{Addr: netip.MustParseAddr(addr), Created: made.Add(-age)}
		return proxy{Proxy: p, gone: make(chan struct{})}
	}
	serves := func(want netip.Addr) {
		t.Helper()
		all := f.connected()
		if got := all[len(all)-1].Addr; got != want {
			t.Errorf("%v serves, want %v", got, want)
		}
	}
	young, old := envoyAt("10.46.128.2", 0), envoyAt("10.46.128.1", time.Hour)
	f.join(young)
	f.join(old) // after the daemon was restarted, they connect in any order
	serves(young.Addr)
	again := envoyAt("10.46.128.2", 0)
	f.join(again) // restarted in place, while its earlier connection is still open
	if was, left := f.leave(young); was || left != 2 {
		t.Errorf("an earlier connection: %v, %d left", was, left)
	}
	serves(young.Addr)
	for _, p := range []proxy{old, again} {
		if !f.reach(p.Addr) {
			t.Errorf("%v is no front", p.Addr)
		}
	}
	s := wire.Service{Flags: wire.FlagRequests | wire.FlagSources}
	for _, p := range []proxy{old, again} {
		if rules := f.allow(s); !slices.Contains(rules, sources.Rule{Prefix: netip.PrefixFrom(p.Addr, 32), Allow: true}) {
			t.Errorf("%v may not wake the service: %v", p.Addr, rules)
		}
	}
	if was, left := f.leave(again); !was || left != 1 {
		t.Errorf("%v, %d left", was, left)
	}
	serves(old.Addr)
	if was, left := f.leave(old); !was || left != 0 || f.reach(old.Addr) {
		t.Errorf("%v, %d left", was, left)
	}
}
