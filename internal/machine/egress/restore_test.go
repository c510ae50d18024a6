// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/netlab/netlabtest"
)

// Whatever somebody removes or changes comes back by itself, and is counted.
func TestWhatOthersRemoveIsPutBack(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{Clients: 1})
	run := func(script string) string {
		t.Helper()
		out, err := n.Node.Command(t.Context(), "sh", "-ec", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return string(out)
	}
	run("ip link add " + gateDevice + " type veth peer name wgpeer; ip link set " + gateDevice + " up")
	run("sysctl -qw net.ipv4.ip_forward=0")
	device := strings.Fields(run("ip -o -4 address show to " + n.Node.Addr.String()))[1]
	var e *Egress
	err := n.Node.Do(func() (err error) {
		e, err = Open(Config{Pods: netip.MustParsePrefix("10.46.128.0/17"), Services: netip.MustParsePrefix("10.46.100.0/24"),
			DevicePrefix: "wgtest", Log: slog.New(slog.DiscardHandler)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	service := netip.MustParseAddrPort("10.46.100.2:80")
	published := map[netip.AddrPort]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8000"): service}
	if err := e.SetServices([]netip.Addr{service.Addr()}, published); err != nil {
		t.Fatal(err)
	}
	intact := func() (err error) {
		return e.do(func() error {
			for _, p := range e.parts() {
				if ok, err := p.Intact(); err != nil || !ok {
					return fmt.Errorf("%s %s: intact %v, %w", p.Kind, p.Name, ok, err)
				}
			}
			return nil
		})
	}
	if err := intact(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct{ name, kind, script string }{
		{"ruleset", partTable, "nft flush ruleset"},
		{"table", partTable, "nft delete table wangell-wgtest"},
		{"rules of a chain", partTable, "nft flush chain wangell-wgtest postrouting"},
		{"a rule", partTable, "nft insert rule wangell-wgtest forward drop"},
		{"elements of a set", partTable, "nft flush set wangell-wgtest services"},
		{"route", partRoute, "ip route del unreachable 10.46.128.0/17 metric 46046"},
		{"forwarding", partSysctl, "sysctl -qw net.ipv4.conf." + device + ".forwarding=0"},
		{"loopback addresses", partSysctl, "sysctl -qw net.ipv4.conf." + gateDevice + ".route_localnet=0"},
	} {
		before := e.Restored()[r.kind]
		run(r.script)
		if r.name != "ruleset" { // that comes back by itself within seconds
			if err := e.do(func() error { e.upkeep.Keep(e.parts()); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		for wait := time.Now().Add(time.Minute); e.Restored()[r.kind] == before || intact() != nil; {
			if time.Now().After(wait) {
				t.Fatalf("%s was not put back: %v; counted %v", r.name, intact(), e.Restored())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
