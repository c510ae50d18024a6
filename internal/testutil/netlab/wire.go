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

// wire puts the bridge into the link's namespace and a cable from it to every host.
func (n *Net) wire(cfg Config) error {
	for _, ns := range n.Namespaces() {
		if err := ns.Do(quiet); err != nil {
			return err
		}
	}
	link, err := n.Link.handle()
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
	for _, host := range n.Namespaces() {
		if host == n.Link {
			continue
		}
		if err := n.plug(link, bridge, host, cfg); err != nil {
			return fmt.Errorf("plug %s into the link: %w", host.Host, err)
		}
	}
	return n.Node.Do(func() error { return defaultRoute(nth(cfg.Link, -2)) })
}

// plug connects one host.
func (n *Net) plug(link *netlink.Handle, bridge netlink.Link, host *Namespace, cfg Config) error {
	fd, err := os.Open(host.Path)
	if err != nil {
		return err
	}
	defer fd.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = host.Host
	port := &netlink.Veth{LinkAttrs: attrs, PeerName: Device, PeerNamespace: netlink.NsFd(int(fd.Fd()))}
	if err := link.LinkAdd(port); err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	if err := link.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("add to bridge: %w", err)
	}
	if host == n.Node {
		if err := n.Link.Do(func() error { return acceptXDP(host.Host) }); err != nil {
			return err
		}
	}
	if err := link.LinkSetUp(port); err != nil {
		return fmt.Errorf("set port up: %w", err)
	}
	return host.Do(func() error { return setUpHost(host, cfg) })
}

// acceptXDP makes a port of the link take what an XDP program at the other end sends back, as a real wire does: it
// gives the port an XDP program that lets everything pass. Without one, the frames of XDP_TX are lost silently or
// wait in a ring: veth_xdp_flush in drivers/net/veth.c looks for a program at the peer; GRO there is not enough.
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
	defer pass.Close() // the device holds it from now on
	if err := netlink.LinkSetXdpFdWithFlags(dev, pass.FD(), nl.XDP_FLAGS_DRV_MODE); err != nil {
		return fmt.Errorf("attach an XDP program to %s: %w", port, err)
	}
	return nil
}

// setUpHost runs in the host's namespace.
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
	if err := netlink.AddrAdd(dev, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(host.Addr, cfg.Link.Bits()))}); err != nil {
		return fmt.Errorf("add address %s: %w", host.Addr, err)
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return fmt.Errorf("set %s up: %w", Device, err)
	}
	if host.Host == "node" {
		return nil
	}
	route := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: ipNet(cfg.Services), Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("add route to %s: %w", cfg.Services, err)
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

// unwire takes all cables out; a veth takes its peer with it.
func (n *Net) unwire() error {
	link, err := n.Link.handle()
	if err != nil {
		return err
	}
	defer link.Close()
	links, err := link.LinkList()
	if err != nil {
		return fmt.Errorf("list devices of %s: %w", n.Link.Name, err)
	}
	var errs []error
	for _, l := range links {
		if l.Type() != "veth" && l.Type() != "bridge" {
			continue
		}
		if err := link.LinkDel(l); err != nil {
			errs = append(errs, fmt.Errorf("remove %s of %s: %w", l.Attrs().Name, n.Link.Name, err))
		}
	}
	return errors.Join(errs...)
}

// quiet turns IPv6 off in the namespace of the calling thread, so that no neighbour discovery is in the way of
// what is observed.
func quiet() error {
	for _, conf := range []string{"all", "default"} {
		path := "/proc/sys/net/ipv6/conf/" + conf + "/disable_ipv6"
		if err := os.WriteFile(path, []byte("1"), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("turn IPv6 off: %w", err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
