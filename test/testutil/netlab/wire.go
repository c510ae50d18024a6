// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

const bridgeName = "br0"

// wire creates the bridge in the link's namespace and a veth from it to every host.
func wire(linkNS, node *Namespace, clients []*Namespace, cfg Config) error {
	hosts := append([]*Namespace{node}, clients...)
	for _, ns := range append([]*Namespace{linkNS}, hosts...) {
		if err := ns.Do(disableIPv6); err != nil {
			return err
		}
	}
	link, err := linkNS.handle()
	if err != nil {
		return err
	}
	defer link.Close()
	snooping := false
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &snooping}
	bridge.Name = bridgeName
	if err := link.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	if err := link.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("set bridge up: %w", err)
	}
	for _, host := range hosts {
		port, err := plug(link, bridge, host)
		if err != nil {
			return fmt.Errorf("connect %s to the link: %w", host.Host, err)
		}
		if host == node {
			if err := linkNS.Do(func() error { return acceptXDP(host.Host) }); err != nil {
				return err
			}
		}
		if err := link.LinkSetUp(port); err != nil {
			return fmt.Errorf("set the port of %s up: %w", host.Host, err)
		}
		if err := host.Do(func() error { return setUpHost(host, cfg) }); err != nil {
			return fmt.Errorf("set up %s: %w", host.Host, err)
		}
		if host != node {
			if err := host.Do(func() error { return routeServices(cfg.Services) }); err != nil {
				return fmt.Errorf("set up %s: %w", host.Host, err)
			}
		}
	}
	return node.Do(func() error { return defaultRoute(nth(cfg.Link, -2)) })
}

// plug connects a host to the bridge and returns its port there.
func plug(link *netlink.Handle, bridge netlink.Link, host *Namespace) (netlink.Link, error) {
	fd, err := os.Open(host.Path)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = host.Host
	port := &netlink.Veth{LinkAttrs: attrs, PeerName: Device, PeerNamespace: netlink.NsFd(int(fd.Fd()))}
	if err := link.LinkAdd(port); err != nil {
		return nil, fmt.Errorf("add veth: %w", err)
	}
	if err := link.LinkSetMaster(port, bridge); err != nil {
		return nil, fmt.Errorf("add to bridge: %w", err)
	}
	return port, nil
}

// acceptXDP makes a port of the link accept frames that an XDP program at the other end sends back, as a real wire
// does. It attaches an XDP program that passes everything. Without one, frames of XDP_TX are lost silently or wait in a
// ring: veth_xdp_flush in drivers/net/veth.c looks for a program at the peer, and GRO there is not enough.
func acceptXDP(port string) error {
	dev, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "netlab_pass", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()}})
	if err != nil {
		return fmt.Errorf("load an XDP program for %s: %w", port, err)
	}
	defer pass.Close() // the device holds a reference
	if err := netlink.LinkSetXdpFdWithFlags(dev, pass.FD(), nl.XDP_FLAGS_DRV_MODE); err != nil {
		return fmt.Errorf("attach an XDP program to %s: %w", port, err)
	}
	return nil
}

// setUpHost configures a host's devices. It runs in the host's namespace.
func setUpHost(host *Namespace, cfg Config) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		return err
	}
	if cfg.FullChecksums {
		if err := SetChecksumOffload(Device, false); err != nil {
			return err
		}
	}
	address := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(host.Addr, cfg.Link.Bits()))}
	if err := netlink.AddrAdd(dev, address); err != nil {
		return fmt.Errorf("add address %s: %w", host.Addr, err)
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s up: %w", Device, err)
	}
	return nil
}

// routeServices adds a route directly on the link to the range of service addresses.
func routeServices(services netip.Prefix) error {
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: ipNet(services), Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add route to %s: %w", services, err)
	}
	return nil
}

func defaultRoute(gateway netip.Addr) error {
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("add default route: %w", err)
	}
	return nil
}

// unwire removes all veths, and with each its peer, and the bridge.
func unwire(linkNS *Namespace) error {
	link, err := linkNS.handle()
	if err != nil {
		return err
	}
	defer link.Close()
	links, err := link.LinkList()
	if err != nil {
		return fmt.Errorf("list devices of %s: %w", linkNS.Name, err)
	}
	var errs []error
	for _, l := range links {
		if l.Type() != "veth" && l.Type() != "bridge" {
			continue
		}
		if err := link.LinkDel(l); err != nil {
			errs = append(errs, fmt.Errorf("remove %s of %s: %w", l.Attrs().Name, linkNS.Name, err))
		}
	}
	return errors.Join(errs...)
}

// disableIPv6 disables IPv6 in the calling thread's namespace, so that captures contain no neighbor discovery.
func disableIPv6() error {
	for _, conf := range []string{"all", "default"} {
		path := "/proc/sys/net/ipv6/conf/" + conf + "/disable_ipv6"
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("disable IPv6: %w", err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
