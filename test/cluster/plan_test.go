// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestPlanKeepsRangesApart(t *testing.T) {
	p, err := newPlan("a", "/var/tmp/a", "bridge", "iptables", maxNodes)
	if err != nil {
		t.Fatal(err)
	}
	ranges := []netip.Prefix{p.LAN, p.Pods, p.Services}
	for i, a := range ranges {
		if !netip.MustParsePrefix("10.200.0.0/13").Overlaps(a) {
			t.Errorf("%s is outside of the documented range", a)
		}
		for _, b := range ranges[i+1:] {
			if a.Overlaps(b) {
				t.Errorf("%s and %s overlap", a, b)
			}
		}
	}
	if !p.LAN.Overlaps(p.VIPs) || p.VIPs.Contains(p.Gateway) || p.VIPs.Contains(p.ControlIP) ||
		p.VIPs.Contains(p.ClientIP) {
		t.Errorf("service addresses %s: not a free part of LAN %s", p.VIPs, p.LAN)
	}
	seen := map[netip.Prefix]bool{}
	for _, n := range p.Nodes {
		if !p.LAN.Contains(n.IP) || p.VIPs.Contains(n.IP) {
			t.Errorf("%s has %s, not a free address of LAN %s", n.Name, n.IP, p.LAN)
		}
		if !p.Pods.Overlaps(n.Pods) || p.Pods.Bits() >= n.Pods.Bits() || seen[n.Pods] {
			t.Errorf("%s has pods %s: not a part of its own of %s", n.Name, n.Pods, p.Pods)
		}
		seen[n.Pods] = true
	}
	if !p.Services.Contains(p.DNSIP) || !p.Services.Contains(p.kubernetesIP()) {
		t.Errorf("DNS %s or API %s outside of %s", p.DNSIP, p.kubernetesIP(), p.Services)
	}
}

func TestPlanRefuses(t *testing.T) {
	for _, c := range []struct {
		name, dir, cni, mode string
		nodes                int
		says                 string
	}{
		{"Upper", "/var/tmp/a", "bridge", "iptables", 1, "--name"},
		{"a/b", "/var/tmp/a", "bridge", "iptables", 1, "--name"},
		{"a", "/var/tmp/a", "bridge", "iptables", 0, "--nodes"},
		{"a", "/var/tmp/a", "bridge", "iptables", maxNodes + 1, "--nodes"},
		{"a", "/var/tmp/a", "other", "iptables", 1, "--cni"},
		{"a", "/var/tmp/a", "bridge", "ipvs", 1, "--proxy-mode"},
		{"a", "relative", "bridge", "iptables", 1, "absolute"},
		{"a", "/run/a", "bridge", "iptables", 1, "/run"},
		{"a", "/var/lib/a", "bridge", "iptables", 1, "/var/lib"},
		{"a", "/var/tmp/" + strings.Repeat("a", 60), "bridge", "iptables", 1, "bytes"},
	} {
		if _, err := newPlan(c.name, c.dir, c.cni, c.mode, c.nodes); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v, want one that says %s", c, err, c.says)
		}
	}
}

func TestVersionsAreThoseOfTheModules(t *testing.T) {
	for _, version := range append(slices.Collect(maps.Keys(otherEtcds)), kubernetesVersion) {
		if err := checkVersions(".", version); err != nil {
			t.Error(err)
		}
	}
}
