// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// podSysctls are set in the pod's network namespace before its device exists. IPv6 stays enabled, so that a server can
// bind "::", but the kernel sends nothing by itself.
var podSysctls = []struct{ name, value string }{
	{"ipv6/conf/default/addr_gen_mode", "1"}, // no link-local address
	{"ipv6/conf/default/accept_dad", "0"},
	{"ipv6/conf/default/accept_ra", "0"},
	{"ipv6/conf/default/autoconf", "0"},
	{"ipv6/conf/default/router_solicitations", "0"},
	// As set by Docker and by the container runtimes of Kubernetes.
	{"ipv4/ip_unprivileged_port_start", "0"},
	{"ipv4/ping_group_range", "0 2147483647"},
}

// maker creates and removes single networks. It has no state of its own.
type maker struct {
	cfg  Config
	host *netlink.Handle // in the host's network namespace
}

func (m *maker) path(name string) string { return filepath.Join(m.cfg.Dir, name) }

// make creates a network with a name and an address. On error parts of it may remain.
func (m *maker) make(name string, addr netip.Addr) (Network, error) {
	n := Network{Name: name, Netns: m.path(name), Addr: addr}
	err := onThread(func() error {
		if err := m.unshare(n.Netns); err != nil {
			return err
		}
		return m.connect(&n)
	})
	if err != nil {
		return Network{}, fmt.Errorf("make pod network %s (%v): %w", name, addr, err)
	}
	return n, nil
}

// unshare moves the calling thread into a new network namespace and binds the namespace to path.
func (m *maker) unshare(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	_ = f.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("new network namespace: %w", err)
	}
	self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
	if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind network namespace to %s: %w", path, err)
	}
	for _, s := range podSysctls {
		if err := setSysctl(s.name, s.value); err != nil {
			return err
		}
	}
	return nil
}

// connect creates the veth pair of n and configures both ends. The calling thread is in n's namespace.
func (m *maker) connect(n *Network) error {
	pod, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer pod.Close()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	hostMAC, podMAC := randomMAC(), randomMAC()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = n.Name, m.cfg.MTU, hostMAC
	if err := m.host.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: Device, PeerHardwareAddr: podMAC, PeerMTU: uint32(m.cfg.MTU),
		PeerNamespace: netlink.NsFd(here),
	}); err != nil {
		return fmt.Errorf("make veth pair: %w", err)
	}
	if err := m.configurePod(pod, n.Addr, hostMAC); err != nil {
		return err
	}
	n.podMAC = [6]byte(podMAC)
	return m.configureHost(n)
}

func (m *maker) configurePod(pod *netlink.Handle, addr netip.Addr, hostMAC net.HardwareAddr) error {
	lo, err := pod.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := pod.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	eth, err := pod.LinkByName(Device)
	if err != nil {
		return fmt.Errorf("find %s: %w", Device, err)
	}
	if err := enableGRO(Device); err != nil {
		return fmt.Errorf("enable GRO on %s: %w", Device, err)
	}
	if err := pod.AddrAdd(eth, &netlink.Addr{IPNet: hostNet(addr), Scope: unix.RT_SCOPE_UNIVERSE}); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := pod.LinkSetUp(eth); err != nil {
		return fmt.Errorf("set %s up: %w", Device, err)
	}
	if err := pod.NeighSet(permanent(eth.Attrs().Index, Gateway, hostMAC)); err != nil {
		return fmt.Errorf("add neighbor: %w", err)
	}
	if err := pod.RouteAdd(&netlink.Route{
		LinkIndex: eth.Attrs().Index, Gw: Gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK), Src: addr.AsSlice(),
		Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
	}); err != nil {
		return fmt.Errorf("add default route: %w", err)
	}
	return nil
}

// configureHost sets up the host's end.
func (m *maker) configureHost(n *Network) error {
	link, err := m.host.LinkByName(n.Name)
	if err != nil {
		return fmt.Errorf("find %s: %w", n.Name, err)
	}
	n.HostDevice = link.Attrs().Index
	for _, p := range m.hostParts(*n, link, nil) {
		if err := p.Put(); err != nil {
			return err
		}
	}
	return nil
}

// leadsElsewhere reports whether the machine has a route to an address of the range that is not for a pod: the address
// is its own, or belongs to one of its networks. A route to more than the whole range, such as the default route, is
// none, because the routes to pods come before it.
func (m *maker) leadsElsewhere(addr netip.Addr) bool {
	routes, err := m.host.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		return false // unreachable, as addresses without a pod should be
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if bits, _ := r.Dst.Mask.Size(); bits < m.cfg.Addresses.Bits() {
			continue
		}
		link, err := m.host.LinkByIndex(r.LinkIndex)
		if err != nil || !m.cfg.owns(link) { // else a pod that is being removed
			return true
		}
	}
	return false
}

// read returns the network of a name from the kernel's state.
func (m *maker) read(name string) (Network, error) {
	n := Network{Name: name, Netns: m.path(name)}
	device := m.cfg.device(name)
	link, err := m.host.LinkByName(device)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			err = fmt.Errorf("device %s: %w", device, fs.ErrNotExist)
		}
		return n, err
	}
	n.HostDevice = link.Attrs().Index
	ns, err := netns.GetFromPath(n.Netns)
	if err != nil {
		return n, err
	}
	defer ns.Close()
	pod, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return n, fmt.Errorf("open netlink in %s: %w", n.Netns, err)
	}
	defer pod.Close()
	eth, err := pod.LinkByName(Device)
	if err != nil {
		return n, fmt.Errorf("find %s in %s: %w", Device, n.Netns, err)
	}
	if mac := eth.Attrs().HardwareAddr; len(mac) == len(n.podMAC) {
		n.podMAC = [6]byte(mac)
	}
	addrs, err := pod.AddrList(eth, netlink.FAMILY_V4)
	if err != nil {
		return n, fmt.Errorf("read addresses of %s in %s: %w", Device, n.Netns, err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && m.cfg.Addresses.Contains(ip) {
			n.Addr = ip
			return n, nil
		}
	}
	return n, fmt.Errorf("%s in %s has no address in %v: %w", Device, n.Netns, m.cfg.Addresses, fs.ErrNotExist)
}

// destroy removes the device and the namespace of a name, if they exist.
func (m *maker) destroy(name string) error {
	var errs []error
	device := m.cfg.device(name)
	link, err := m.host.LinkByName(device)
	if err == nil {
		err = m.host.LinkDel(link)
	}
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		errs = append(errs, fmt.Errorf("remove device %s: %w", device, err))
	}
	path := filepath.Join(m.cfg.Dir, name)
	// EINVAL: nothing is mounted there.
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL &&
		err != unix.ENOENT {
		errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func permanent(device int, addr netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: device, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac,
	}
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

// randomMAC returns a locally administered unicast address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac)
	mac[0] = mac[0]&0xfe | 0x02
	return mac
}

// setHostSysctl is setSysctl in the network namespace of the process instead of the thread. It uses another thread,
// because /proc/sys/net shows the namespace of the thread that opens it, also below /proc/PID.
func setHostSysctl(name, value string) error {
	result := make(chan error, 1)
	go func() { result <- setSysctl(name, value) }()
	return <-result
}

// setSysctl writes a sysctl of the calling thread's network namespace. One that the kernel lacks, such as with IPv6
// disabled, is skipped.
func setSysctl(name, value string) error {
	err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set net/%s to %s: %w", name, strconv.Quote(value), err)
	}
	return nil
}

// groFeature is the kernel's name of generic receive offload.
const groFeature = "rx-gro"

// enableGRO switches generic receive offload on for a device of the calling thread's namespace. It makes veth receive
// through NAPI; without it, frames that XDP redirects to the other end vanish.
func enableGRO(device string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Change(device, map[string]bool{groFeature: true})
}
