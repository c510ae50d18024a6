// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestAllowFromTakesIPv4Networks(t *testing.T) {
	many := make([]string, maxAllowFrom+1)
	for i := range many {
		many[i] = fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255)
	}
	for _, c := range []struct {
		list []string
		want string // what the error offers; empty if there is none
	}{
		{nil, ""},
		{[]string{"10.0.0.0/8", "192.0.2.1/32", "0.0.0.0/0"}, ""},
		{many[:maxAllowFrom], ""},
		{[]string{}, "spec.allowFrom: is empty, so that no client could connect: write allowFrom: [10.0.0.0/8]"},
		{many, "spec.allowFrom: has 1025 networks, at most 1024: join neighbors"},
		{[]string{"10.0.0.0/8", "10.0.0.1"},
			"spec.allowFrom[1]: want an IPv4 network, got the address 10.0.0.1: write 10.0.0.1/32"},
		{[]string{"office"}, `spec.allowFrom[0]: want an IPv4 network, got "office"`},
		{[]string{"2001:db8::/32"}, "remove it: service addresses are IPv4"},
		{[]string{"10.1.2.3/8"}, "10.1.2.3/8 has bits beyond its prefix: write 10.0.0.0/8, or 10.1.2.3/32"},
		{[]string{"10.0.0.0/8", "127.0.0.0/8"}, "spec.allowFrom[1]: 127.0.0.0/8 has no client of a service: " +
			"write the machine's own addresses, such as 192.0.2.7/32, for programs on it, or publish the port to them " +
			"alone: hostAddress: 127.0.0.1"},
		{[]string{"127.0.0.1/32"}, "spec.allowFrom[0]: 127.0.0.1/32 has no client"},
		{[]string{"127.0.0.1"}, "spec.allowFrom[0]: 127.0.0.1 has no client"},
		{[]string{"127.0.0.1/8"}, "spec.allowFrom[0]: 127.0.0.1/8 has no client"},
		{[]string{"0.0.0.0/1", "126.0.0.0/7", "128.0.0.0/8"}, ""},
		{[]string{"10.0.0.0/8", "10.0.0.0/8"}, "spec.allowFrom[1]: 10.0.0.0/8 is listed twice: remove it"},
	} {
		s := &WangellService{}
		s.Name, s.Namespace = "db", "default"
		s.Spec = WangellServiceSpec{Image: "registry.example.com/db:v1", Port: 5432, AllowFrom: c.list}
		for place, validate := range map[string]func(*WangellService) ValidationErrors{
			"one machine": Validate, "Kubernetes": ValidateCluster,
		} {
			errs := validate(s)
			if (c.want == "") != (len(errs) == 0) || !strings.Contains(errs.Error(), c.want) {
				t.Errorf("%s: %.60v: %v, want %q", place, c.list, errs, c.want)
			}
		}
	}
}

func TestAllowedNetworks(t *testing.T) {
	s := WangellServiceSpec{}
	if _, restricted := s.AllowedNetworks(); restricted {
		t.Error("a service without allowFrom is restricted")
	}
	s.AllowFrom = []string{"10.0.0.0/8", "not a network"}
	got, restricted := s.AllowedNetworks()
	if want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}; !restricted || !slices.Equal(got, want) {
		t.Errorf("%v, restricted %v; want %v", got, restricted, want)
	}
}
