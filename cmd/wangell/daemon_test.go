// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func TestServiceRanges(t *testing.T) {
	for _, c := range []struct{ texts, want string }{
		{"10.46.100.0/24", "[10.46.100.0/24]"},
		{"10.46.100.7/24", "[10.46.100.0/24]"},
		{"10.0.0.0-10.0.0.255", "[10.0.0.0/24]"},
		{"10.0.0.10-10.0.0.20", "[10.0.0.10/31 10.0.0.12/30 10.0.0.16/30 10.0.0.20/32]"},
		{"0.0.0.0-255.255.255.255", "[0.0.0.0/0]"},
		{"10.0.0.1-10.0.0.1", "[10.0.0.1/32]"},
		{"10.0.0.1-10.0.0.254", "[]"}, // 14 prefixes: each address gets a route when it has a service
	} {
		got, err := serviceRanges([]string{c.texts})
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v (%v), want %s", c.texts, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "10.0.0.1", "fd00::/64", "10.0.0.9-10.0.0.1", "10.0.0.1-", "a-b", "fd00::1-fd00::2"} {
		if got, err := serviceRanges([]string{bad}); err == nil {
			t.Errorf("%q is read as %v", bad, got)
		}
	}
}

// TestPrefixesHoldJustTheRange compares with counting.
func TestPrefixesHoldJustTheRange(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}) }
	for range 500 {
		first := rnd.IntN(600)
		last := first + rnd.IntN(600)
		ps := prefixes(at(first), at(last))
		for n := range 1300 {
			in := slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(at(n)) })
			if in != (n >= first && n <= last) {
				t.Fatalf("%v to %v: %v: %v is in it: %v", at(first), at(last), ps, at(n), in)
			}
		}
	}
}
