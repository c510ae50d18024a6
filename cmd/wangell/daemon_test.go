// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
)

func TestServiceRangesBecomeTheFewestPrefixes(t *testing.T) {
	for _, c := range []struct{ texts, want string }{
		{"10.46.100.0/24", "[10.46.100.0/24]"},
		{"10.46.100.7/24", "[10.46.100.0/24]"},
		{"10.0.0.0-10.0.0.255", "[10.0.0.0/24]"},
		{"10.0.0.10-10.0.0.20", "[10.0.0.10/31 10.0.0.12/30 10.0.0.16/30 10.0.0.20/32]"},
		{"0.0.0.0-255.255.255.255", "[0.0.0.0/0]"},
		{"10.0.0.1-10.0.0.1", "[10.0.0.1/32]"},
		{"10.0.0.1-10.0.0.254", "[]"}, // too many prefixes: each service gets a route
	} {
		got, err := serviceRanges([]string{c.texts})
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v (%v), want %s", c.texts, got, err, c.want)
		}
	}
	for _, bad := range []string{
		"", "10.0.0.1", "fd00::/64", "10.0.0.9-10.0.0.1", "10.0.0.1-", "a-b", "fd00::1-fd00::2", "10.0.0.1-fd00::2",
	} {
		if got, err := serviceRanges([]string{bad}); err == nil {
			t.Errorf("%q is accepted as %v", bad, got)
		}
	}
}
