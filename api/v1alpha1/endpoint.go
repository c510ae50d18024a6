// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "net/netip"

// hostEndpoint returns the address and port of the machine at which a port is published: with the address 0.0.0.0, at
// all addresses of the machine. The result is the zero value if it is published at none.
func hostEndpoint(address string, port int32) netip.AddrPort {
	if port == 0 {
		return netip.AddrPort{}
	}
	addr, err := netip.ParseAddr(address)
	if err != nil {
		addr = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(addr, uint16(port))
}

// EndpointsOverlap reports whether two endpoints of a machine have a port and an address in common, so that only one
// service or program can have them. The address 0.0.0.0 is every address.
func EndpointsOverlap(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() &&
		(a.Addr() == b.Addr() || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}
