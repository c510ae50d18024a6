// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"net/netip"
)

// Default networks.
var (
	// DefaultLink is the network of the segment.
	DefaultLink = netip.MustParsePrefix("10.46.200.0/24")
	// DefaultServices is the range of service addresses.
	DefaultServices = netip.MustParsePrefix("10.46.100.0/24")
)

// Device is the name of the device that connects a node or client to the link.
const Device = "eth0"

// Config describes a network. The zero value is a node and one client.
type Config struct {
	// Clients is the number of clients, 1-200. 0 means 1.
	Clients int
	// Link is the network of the segment, /8 to /24. The node has address number 1, client i number 10+i. The node's
	// default gateway is the last host address, which no host has. Default: DefaultLink.
	Link netip.Prefix
	// Services is the range of service addresses. Clients have a route to it directly on the link, so they look up
	// service addresses by ARP. Default: DefaultServices.
	Services netip.Prefix
	// FullChecksums turns checksum offload off on all hosts, so that every packet on the link carries a full checksum,
	// as on a real wire. Otherwise veths pass on partial checksums.
	FullChecksums bool
}

func (c Config) withDefaults() (Config, error) {
	if c.Clients == 0 {
		c.Clients = 1
	}
	if !c.Link.IsValid() {
		c.Link = DefaultLink
	}
	if !c.Services.IsValid() {
		c.Services = DefaultServices
	}
	c.Link, c.Services = c.Link.Masked(), c.Services.Masked()
	switch {
	case c.Clients < 0 || c.Clients > 200:
		return c, fmt.Errorf("create a network: %d clients: want 1 to 200", c.Clients)
	case !c.Link.Addr().Is4() || c.Link.Bits() > 24 || c.Link.Bits() < 8:
		return c, fmt.Errorf("create a network: link %s: want an IPv4 network between /8 and /24", c.Link)
	case !c.Services.Addr().Is4():
		return c, fmt.Errorf("create a network: services %s: want an IPv4 network", c.Services)
	case c.Link.Overlaps(c.Services):
		return c, fmt.Errorf("create a network: link %s and services %s overlap: choose other ranges", c.Link, c.Services)
	}
	return c, nil
}

// nth returns address number i of an IPv4 network. A negative i counts from the end; -1 is the broadcast address.
func nth(p netip.Prefix, i int) netip.Addr {
	b := p.Masked().Addr().As4()
	base := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	if i < 0 {
		base += uint32(1) << (32 - p.Bits())
	}
	v := base + uint32(int32(i))
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
