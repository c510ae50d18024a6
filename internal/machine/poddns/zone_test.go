// SPDX-License-Identifier: Apache-2.0

package poddns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func testNames() *names {
	return newNames(map[Name]netip.Addr{
		{"default", "redis"}: netip.MustParseAddr("10.46.100.2"),
		{"shop", "web"}:      netip.MustParseAddr("10.46.100.3"),
	}, []netip.Prefix{netip.MustParsePrefix("10.46.100.0/24"), netip.MustParsePrefix("10.46.128.0/17")})
}

func TestNamesOfServicesAreAnsweredAndOthersForwarded(t *testing.T) {
	n := testNames()
	for _, c := range []struct {
		name, from string
		kind       uint16
		want       string // an address or name, or the verdict
	}{
		{"redis.", "default", dns.TypeA, "10.46.100.2"},
		{"ReDiS.", "default", dns.TypeA, "10.46.100.2"},
		{"redis.", "shop", dns.TypeA, "forward"},
		{"web.", "shop", dns.TypeA, "10.46.100.3"},
		{"redis.default.", "shop", dns.TypeA, "10.46.100.2"},
		{"redis.default.svc.", "shop", dns.TypeA, "10.46.100.2"},
		{"redis.default.svc.cluster.local.", "shop", dns.TypeA, "10.46.100.2"},
		{"redis.default.svc.cluster.local.", "shop", dns.TypeAAAA, "exists"},
		{"redis.", "default", dns.TypeMX, "exists"},
		{"redis.shop.svc.cluster.local.", "shop", dns.TypeA, "unknown"},
		{"example.com.shop.svc.cluster.local.", "shop", dns.TypeA, "unknown"},
		{"shop.svc.cluster.local.", "shop", dns.TypeA, "exists"},
		{"none.svc.cluster.local.", "shop", dns.TypeA, "unknown"},
		{"svc.cluster.local.", "shop", dns.TypeA, "exists"},
		{"cluster.local.", "shop", dns.TypeSOA, "exists"},
		{"redis.cluster.local.", "shop", dns.TypeA, "unknown"},
		{"redis.none.svc.", "shop", dns.TypeA, "unknown"},
		{"example.com.", "default", dns.TypeA, "forward"},
		{".", "default", dns.TypeNS, "forward"},
		{"2.100.46.10.in-addr.arpa.", "shop", dns.TypePTR, "redis.default.svc.cluster.local."},
		{"2.100.46.10.in-addr.arpa.", "shop", dns.TypeA, "exists"},
		{"9.100.46.10.in-addr.arpa.", "shop", dns.TypePTR, "unknown"},
		{"1.128.46.10.in-addr.arpa.", "shop", dns.TypePTR, "unknown"},
		{"1.2.0.192.in-addr.arpa.", "shop", dns.TypePTR, "forward"},
		{"46.10.in-addr.arpa.", "shop", dns.TypePTR, "forward"},
	} {
		records, v := n.find(dns.Question{Name: c.name, Qtype: c.kind, Qclass: dns.ClassINET}, c.from)
		got := [...]string{"forward", "exists", "unknown"}[v]
		for _, r := range records {
			switch r := r.(type) {
			case *dns.A:
				got = r.A.String()
			case *dns.PTR:
				got = r.Ptr
			}
		}
		if got != c.want {
			t.Errorf("%s %s from %s: %s, want %s", c.name, dns.TypeToString[c.kind], c.from, got, c.want)
		}
	}
}

// Whatever a pod asks, the answer is about that name only, and fits into a message.
func FuzzFind(f *testing.F) {
	for _, name := range []string{"redis.", "a.b.svc.cluster.local.", "1.2.3.4.in-addr.arpa.", "..", `\000.`} {
		f.Add(name, dns.TypeA)
	}
	n := testNames()
	f.Fuzz(func(t *testing.T, name string, kind uint16) {
		records, v := n.find(dns.Question{Name: name, Qtype: kind, Qclass: dns.ClassINET}, "default")
		if len(records) > 1 || v == forward && len(records) > 0 {
			t.Fatalf("%q: %v, %v", name, records, v)
		}
		for _, r := range records {
			if r.Header().Name != name || !strings.Contains(r.String(), ".") {
				t.Fatalf("%q is answered by %v", name, r)
			}
		}
	})
}
