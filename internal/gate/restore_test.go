// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// outsideVIP is a VIP outside the service range.
var outsideVIP = netip.MustParseAddrPort("10.77.0.5:80")

// removals are what somebody may remove or change, one for each thing that the gate sets up on the machine.
var removals = []struct {
	name   string
	kind   string
	remove func(n *network)
}{
	{"device", partDevice, shell("ip link del wangell0")},
	{"inner device down", partLink, shell("ip link set wangell0 down")},
	{"outer device down", partLink, shell("ip link set wangell1 down")},
	{"ARP on", partLink, shell("ip link set wangell0 arp on")},
	{"forwarding", partSysctl, shell("sysctl -qw net.ipv4.conf.wangell0.forwarding=0")},
	{"reverse path filter", partSysctl, shell("sysctl -qw net.ipv4.conf.wangell0.rp_filter=1")},
	{"IPv6", partSysctl, shell("sysctl -qw net.ipv6.conf.wangell1.disable_ipv6=0")},
	{"route of the service range", partRoute, shell("ip route del %v dev wangell0", serviceRange)},
	{"route of a VIP", partRoute, shell("ip route del %v dev wangell0", outsideVIP.Addr())},
	{"program at the external interface", partProgram, detachLink("nic-eth0")},
	{"program at wangell0, egress", partProgram, detachLink("wangell0-egress")},
	{"program at wangell0, ingress", partProgram, detachLink("wangell0-ingress")},
	{"program at a pod", partProgram, func(n *network) {
		detachLink(podLink(linkByName(n, podNS(1)).Attrs().Index))(n)
	}},
	{"XDP", partProgram, func(n *network) {
		detachLink(xdpLink(n.g.Attached()["eth0"].Mode, "eth0"))(n)
	}},
	{"pin of a map", partPin, func(n *network) { n.must(os.Remove(filepath.Join(n.cfg.mapsDir(), gateMapFlows))) }},
	{"pin of a link", partPin, func(n *network) { n.must(os.Remove(n.g.pinPath("wangell0-egress"))) }},
	{"pins", partPin, func(n *network) { n.must(os.RemoveAll(n.cfg.linksDir())) }},
}

// shell removes something by a command.
func shell(format string, args ...any) func(n *network) {
	return func(n *network) { n.Helper(); sh(n.T, format, args...) }
}

// detachLink detaches a program as bpftool does.
func detachLink(name string) func(n *network) {
	return func(n *network) {
		n.Helper()
		n.g.links.mu.Lock()
		defer n.g.links.mu.Unlock()
		l := n.g.links.byName[name]
		if l == nil {
			n.Fatalf("no link %s", name)
		}
		n.must(l.Detach())
	}
}

// What others remove comes back by itself, and the next daemon finds all of it.
func TestWhatOthersRemoveIsPutBack(t *testing.T) {
	n := newNetworkWith(t, 1500, func(c *Config) { c.XDPMode = XDPGeneric })
	check := n.served()
	n.must2(n.g.SetService(Service{Addr: outsideVIP, MaxParked: 100, MaxParkedPerSource: 100}))
	check("before")
	for i, r := range removals {
		before := n.g.Restored()[r.kind]
		r.remove(n)
		if i > 0 { // the gate does so by itself every few seconds, as it has for the first
			n.g.poll()
		}
		eventually(t, func() error {
			if n.g.Restored()[r.kind] == before {
				return fmt.Errorf("%s was not put back", r.name)
			}
			return n.intact()
		})
		check(r.name)
	}
	n.must(n.g.Close())
	n.open()
	check("with the next gate")
}

// must2 is must for a call with a result that does not matter.
func (n *network) must2(_ any, err error) { n.Helper(); n.must(err) }

// intact returns what the gate would put back now.
func (n *network) intact() error {
	have, err := n.g.dev.routes()
	if err != nil {
		return err
	}
	for _, p := range []netip.Prefix{serviceRange, netip.PrefixFrom(outsideVIP.Addr(), 32)} {
		if !slices.Contains(have, p) {
			return fmt.Errorf("no route to %v", p)
		}
	}
	for _, p := range n.g.dev.parts(n.cfg.owner()) {
		if ok, err := p.Intact(); err != nil || !ok {
			return fmt.Errorf("%s %s: %v, %w", p.Kind, p.Name, ok, err)
		}
	}
	n.g.links.mu.Lock()
	defer n.g.links.mu.Unlock()
	for name, l := range n.g.links.byName {
		if _, err := os.Stat(n.g.pinPath(name)); err != nil {
			return err
		}
		if l.at.prog == nil {
			continue
		}
		if place, err := l.place(); err != nil || place != 0 {
			return fmt.Errorf("%s is at %d: %w", name, place, err)
		}
	}
	return nil
}

// On a machine without another address, that of wangell0 comes back.
func TestAddressOfTheDeviceIsPutBack(t *testing.T) {
	g := openGate(t, nil)
	sh(t, "ip addr flush dev lo; ip addr flush dev nic; ip addr flush dev wangell0")
	eventually(t, func() error {
		if ok, err := g.dev.sourcePart().Intact(); err != nil || !ok {
			return fmt.Errorf("wangell0 has no address: %v, %w", ok, err)
		}
		return nil
	})
	sh(t, "ip addr add 192.0.2.1/32 dev lo") // this machine's own address takes its place
	if ok, err := g.dev.sourcePart().Intact(); err != nil || !ok {
		t.Errorf("with another address: %v, %v", ok, err)
	}
	sh(t, "ip addr flush dev lo")
}
