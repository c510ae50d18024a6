// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxAllowFrom is the most networks in spec.allowFrom.
const maxAllowFrom = 1024

// AllowedNetworks returns the networks of spec.allowFrom. restricted is false if every client may connect. What is not
// an IPv4 network, which validation refuses, is left out.
func (s *WangellServiceSpec) AllowedNetworks() (networks []netip.Prefix, restricted bool) {
	return networksOf(s.AllowFrom), s.AllowFrom != nil
}

// networksOf returns the IPv4 networks in a list, without what is none.
func networksOf(list []string) (networks []netip.Prefix) {
	for _, text := range list {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() {
			networks = append(networks, p.Masked())
		}
	}
	return networks
}

func (e *ValidationErrors) allowFrom(list []string) {
	p := specPath.Child("allowFrom")
	if list != nil && len(list) == 0 {
		e.add(p, "write allowFrom: [10.0.0.0/8], for example, or leave it out to allow all clients",
			"is empty, so that no client could connect")
	}
	e.networks(p, list, maxAllowFrom, "allowFrom", func(at *field.Path, text string) bool {
		if !inLoopback(text) {
			return false
		}
		e.add(at, "write the machine's own addresses, such as 192.0.2.7/32, for programs on it, or publish the port to "+
			"them alone: hostAddress: 127.0.0.1", "%s has no client of a service", text)
		return true
	})
}

// inLoopback reports whether a text is an address or a network within 127.0.0.0/8 (RFC 1122, section 3.2.1.3). The gate
// sees no client there: what leaves the stack has an address of the machine.
func inLoopback(text string) bool {
	address, _, _ := strings.Cut(text, "/")
	a, err := netip.ParseAddr(address)
	n, noNetwork := netip.ParsePrefix(text)
	return err == nil && a.Is4() && a.IsLoopback() && (noNetwork != nil || n.Bits() >= 8)
}

// networks checks a list of at most some IPv4 networks. name is the name of the field. refused, unless it is nil, adds
// the error of an entry that the field in particular does not take, and reports whether there was one.
func (e *ValidationErrors) networks(p *field.Path, list []string, most int, name string,
	refused func(at *field.Path, text string) bool) {
	example := fmt.Sprintf("write %s: [10.0.0.0/8], for example", name)
	if len(list) > most {
		e.add(p, "join neighbors to wider networks", "has %d networks, at most %d", len(list), most)
	}
	seen := map[netip.Prefix]bool{}
	for i, text := range list {
		at := p.Index(i)
		n, err := netip.ParsePrefix(text)
		switch {
		case refused != nil && refused(at, text):
		case err != nil && parses(text):
			e.add(at, fmt.Sprintf("write %s/32", text), "want an IPv4 network, got the address %s", text)
		case err != nil:
			e.add(at, example, "want an IPv4 network, got %q", text)
		case !n.Addr().Is4():
			e.add(at, "remove it: service addresses are IPv4", "want an IPv4 network, got %q", text)
		case n != n.Masked():
			e.add(at, fmt.Sprintf("write %s, or %s/32 for that address alone", n.Masked(), n.Addr()),
				"%s has bits beyond its prefix", text)
		case seen[n]:
			e.add(at, "remove it", "%s is listed twice", text)
		}
		seen[n] = true
	}
}

// parses reports whether a text is an IPv4 address.
func parses(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.Is4()
}
