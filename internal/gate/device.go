// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The gate's own devices: the two ends of a veth pair, both in the node's network namespace. The service
// range is routed to InnerDevice; what is sent into OuterDevice comes in by it.
const (
	InnerDevice = "wangell0"
	OuterDevice = "wangell1"
)

// devices are what programs need to know of InnerDevice and OuterDevice.
type devices struct {
	netlink      *netlink.Handle // of the network namespace in which both are
	inner, outer int             // interface indices
	innerMAC     net.HardwareAddr
}

func aliasOf(owner string) string { return "wangell gate of " + owner }

// ensureDevices makes wangell0 and wangell1, or takes what is there.
func ensureDevices(owner string) (devices, error) {
	inner, err := netlink.LinkByName(InnerDevice)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		attrs := netlink.NewLinkAttrs()
		attrs.Name = InnerDevice
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: OuterDevice}
		if err := netlink.LinkAdd(veth); err != nil {
			return devices{}, fmt.Errorf("making the device %s: %w", InnerDevice, err)
		}
		if inner, err = netlink.LinkByName(InnerDevice); err != nil {
			return devices{}, fmt.Errorf("looking for %s: %w", InnerDevice, err)
		}
		if err := netlink.LinkSetAlias(inner, aliasOf(owner)); err != nil {
			return devices{}, fmt.Errorf("naming the owner of %s: %w", InnerDevice, err)
		}
	case err != nil:
		return devices{}, fmt.Errorf("looking for %s: %w", InnerDevice, err)
	case inner.Attrs().Alias != aliasOf(owner):
		return devices{}, fmt.Errorf("the device %s is there already (%q): one instance a network namespace: run \"wangell down\" for that one first",
			InnerDevice, inner.Attrs().Alias)
	}
	outer, err := netlink.LinkByName(OuterDevice)
	if err != nil {
		return devices{}, fmt.Errorf("looking for %s: %w", OuterDevice, err)
	}
	for _, l := range []netlink.Link{inner, outer} {
		// No IPv6 and no ARP: these devices carry nothing but what the gate puts there.
		name := l.Attrs().Name
		for file, value := range map[string]string{
			"net/ipv6/conf/" + name + "/disable_ipv6": "1",
			"net/ipv4/conf/" + name + "/rp_filter":    "0",
			// The programs look up routes as if by this device; the kernel answers for those that forward.
			"net/ipv4/conf/" + name + "/forwarding": "1",
		} {
			if err := writeSetting(file, value); err != nil && !errors.Is(err, os.ErrNotExist) {
				return devices{}, fmt.Errorf("setting up %s: %w", name, err)
			}
		}
		if err := netlink.LinkSetARPOff(l); err != nil {
			return devices{}, fmt.Errorf("turning ARP off on %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return devices{}, fmt.Errorf("bringing %s up: %w", name, err)
		}
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return devices{}, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return devices{netlink: h, inner: inner.Attrs().Index, outer: outer.Attrs().Index, innerMAC: inner.Attrs().HardwareAddr}, nil
}

// routeTo is the route of service addresses to wangell0.
func (d *devices) routeTo(p netip.Prefix) *netlink.Route {
	return &netlink.Route{
		LinkIndex: d.inner,
		Scope:     netlink.SCOPE_LINK,
		Dst:       &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
	}
}

// route routes service addresses to wangell0.
func (d *devices) route(p netip.Prefix) error {
	if err := d.netlink.RouteReplace(d.routeTo(p)); err != nil {
		return fmt.Errorf("routing %v to %s: %w", p, InnerDevice, err)
	}
	return nil
}

// unroute is the reverse of route.
func (d *devices) unroute(p netip.Prefix) error {
	if err := d.netlink.RouteDel(d.routeTo(p)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing the route of %v to %s: %w", p, InnerDevice, err)
	}
	return nil
}

// routes routes the service ranges and the VIPs outside of them to wangell0, and nothing else.
func (g *Gate) routes() error {
	wanted := slices.Clone(g.cfg.ServiceRanges)
	for vip := range g.services.vips {
		if !g.inRange(vip) {
			wanted = append(wanted, netip.PrefixFrom(vip, 32))
		}
	}
	for i, p := range wanted {
		wanted[i] = p.Masked()
		if err := g.dev.route(p); err != nil {
			return err
		}
	}
	have, err := g.dev.netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: g.dev.inner}, netlink.RT_FILTER_OIF)
	if err != nil {
		return fmt.Errorf("listing the routes to %s: %w", InnerDevice, err)
	}
	for _, r := range have {
		if r.Dst == nil {
			continue
		}
		bits, _ := r.Dst.Mask.Size()
		a, _ := netip.AddrFromSlice(r.Dst.IP.To4())
		if p := netip.PrefixFrom(a, bits); !slices.Contains(wanted, p) {
			if err := g.dev.unroute(p); err != nil {
				return err
			}
		}
	}
	return g.tellOutside()
}

// inRange tells whether an address is in a service range.
func (g *Gate) inRange(a netip.Addr) bool {
	return slices.ContainsFunc(g.cfg.ServiceRanges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// tellOutside tells the programs whether there are VIPs outside of all ranges.
func (g *Gate) tellOutside() error {
	var some uint32
	for vip := range g.services.vips {
		if !g.inRange(vip) {
			some = 1
		}
	}
	if err := g.objs.Outside.Set(some); err != nil {
		return fmt.Errorf("telling the gate whether VIPs are outside of all ranges: %w", err)
	}
	return nil
}

// addNodeInterface makes the interface with the node's address one of the external ones: packets of other nodes come
// in there.
func (g *Gate) addNodeInterface() error {
	if g.cfg.EncapPort == 0 {
		return nil
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing this node's addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, _ := netip.AddrFromSlice(a.IP.To4()); ip != g.cfg.NodeAddr {
			continue
		}
		dev, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return fmt.Errorf("looking for the interface with %v: %w", g.cfg.NodeAddr, err)
		}
		if name := dev.Attrs().Name; !slices.Contains(g.cfg.Interfaces, name) {
			g.cfg.Interfaces = append(slices.Clone(g.cfg.Interfaces), name)
		}
		return nil
	}
	return fmt.Errorf("node address %v: no interface has it: give this node's address", g.cfg.NodeAddr)
}

// removeDevices removes wangell0 (and with it wangell1 and the routes) if it belongs to a gate.
func removeDevices(owner string) error {
	inner, err := netlink.LinkByName(InnerDevice)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for %s: %w", InnerDevice, err)
	}
	if inner.Attrs().Alias != aliasOf(owner) {
		return nil
	}
	if err := netlink.LinkDel(inner); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing %s: %w", InnerDevice, err)
	}
	return nil
}

// DefaultInterfaces returns the interfaces that have an IPv4 default route, without the gate's own.
func DefaultInterfaces() ([]string, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	var names []string
	seen := map[int]bool{}
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		indices := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			indices = append(indices, hop.LinkIndex)
		}
		for _, i := range indices {
			if i == 0 || seen[i] {
				continue
			}
			seen[i] = true
			l, err := netlink.LinkByIndex(i)
			if err != nil || strings.HasPrefix(l.Attrs().Name, "wangell") {
				continue
			}
			names = append(names, l.Attrs().Name)
		}
	}
	return names, nil
}
