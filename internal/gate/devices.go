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

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The gate's own devices, the ends of a veth pair in the node's network namespace. The service ranges are routed to
// InnerDevice; frames sent through OuterDevice arrive on it.
const (
	InnerDevice = "wangell0"
	OuterDevice = "wangell1"
)

// devices identifies InnerDevice and OuterDevice.
type devices struct {
	netlink      *netlink.Handle // in their network namespace
	inner, outer int             // interface indices
	innerMAC     net.HardwareAddr
}

// close closes the netlink socket, if it is open.
func (d *devices) close() {
	if d.netlink != nil {
		d.netlink.Close()
	}
}

// aliasOf is the alias of InnerDevice, which names the gate that created it.
func aliasOf(owner string) string { return "wangell gate of " + owner }

// ensureDevices creates InnerDevice and OuterDevice, or adopts them, and sets them up.
func ensureDevices(owner string) (devices, error) {
	inner, err := ensureInner(owner)
	if err != nil {
		return devices{}, err
	}
	outer, err := netlink.LinkByName(OuterDevice)
	if err != nil {
		return devices{}, fmt.Errorf("looking for %s: %w", OuterDevice, err)
	}
	for _, l := range []netlink.Link{inner, outer} {
		if err := setUp(l); err != nil {
			return devices{}, err
		}
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return devices{}, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return devices{
		netlink:  h,
		inner:    inner.Attrs().Index,
		outer:    outer.Attrs().Index,
		innerMAC: inner.Attrs().HardwareAddr,
	}, nil
}

// ensureInner returns InnerDevice, and creates the pair if it does not exist.
func ensureInner(owner string) (netlink.Link, error) {
	inner, err := netlink.LinkByName(InnerDevice)
	var missing netlink.LinkNotFoundError
	switch {
	case err == nil && inner.Attrs().Alias != aliasOf(owner):
		return nil, fmt.Errorf("device %s already exists (%q): one instance per network namespace: "+
			"run \"wangell down\" for that one first", InnerDevice, inner.Attrs().Alias)
	case err == nil:
		return inner, nil
	case !errors.As(err, &missing):
		return nil, fmt.Errorf("looking for %s: %w", InnerDevice, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = InnerDevice
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: OuterDevice}); err != nil {
		return nil, fmt.Errorf("creating the device %s: %w", InnerDevice, err)
	}
	if inner, err = netlink.LinkByName(InnerDevice); err != nil {
		return nil, fmt.Errorf("looking for %s: %w", InnerDevice, err)
	}
	if err := netlink.LinkSetAlias(inner, aliasOf(owner)); err != nil {
		return nil, fmt.Errorf("setting the owner of %s: %w", InnerDevice, err)
	}
	return inner, nil
}

// setUp sets up one of the gate's devices and brings it up. They carry nothing but what the gate puts there, so they
// have no IPv6 and no ARP.
func setUp(l netlink.Link) error {
	name := l.Attrs().Name
	for _, s := range sysctlsOf(name) {
		if err := writeSysctl(s.name, s.value); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("setting up %s: %w", name, err)
		}
	}
	return bringUp(name, l.Attrs().Index)
}

// sysctl is a kernel setting, named relative to /proc/sys.
type sysctl struct{ name, value string }

// sysctlsOf returns the settings of one of the gate's devices.
func sysctlsOf(device string) []sysctl {
	return []sysctl{
		{"net/ipv6/conf/" + device + "/disable_ipv6", "1"},
		{"net/ipv4/conf/" + device + "/rp_filter", "0"},
		// The programs look up routes as if from this device, which the kernel only does for one that forwards.
		{"net/ipv4/conf/" + device + "/forwarding", "1"},
	}
}

// bringUp brings up one of the gate's devices, without ARP.
func bringUp(name string, index int) error {
	l := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	if err := netlink.LinkSetARPOff(l); err != nil {
		return fmt.Errorf("disabling ARP on %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("bringing up %s: %w", name, err)
	}
	return nil
}

// removeDevices removes InnerDevice if it belongs to this owner. OuterDevice and the routes go with it.
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

// routeTo is a route to InnerDevice.
func (d *devices) routeTo(p netip.Prefix) *netlink.Route {
	return &netlink.Route{
		LinkIndex: d.inner,
		Scope:     netlink.SCOPE_LINK,
		Dst:       &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
	}
}

// route routes service addresses to InnerDevice.
func (d *devices) route(p netip.Prefix) error {
	if err := d.netlink.RouteReplace(d.routeTo(p)); err != nil {
		return fmt.Errorf("routing %v to %s: %w", p, InnerDevice, err)
	}
	return nil
}

// unroute reverses route.
func (d *devices) unroute(p netip.Prefix) error {
	if err := d.netlink.RouteDel(d.routeTo(p)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("removing the route of %v to %s: %w", p, InnerDevice, err)
	}
	return nil
}

// setRoutes routes exactly these prefixes to InnerDevice.
func (d *devices) setRoutes(wanted []netip.Prefix) error {
	for _, p := range wanted {
		if err := d.route(p); err != nil {
			return err
		}
	}
	have, err := d.routes()
	if err != nil {
		return err
	}
	for _, p := range have {
		if !slices.Contains(wanted, p) {
			if err := d.unroute(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// listDevices returns all devices of the calling thread's network namespace.
func listDevices() ([]netlink.Link, error) {
	devices, err := listAll(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing devices: %w", err)
	}
	return devices, nil
}

// listAddresses returns all IPv4 addresses of the calling thread's network namespace.
func listAddresses() ([]netlink.Addr, error) {
	addrs, err := listAll(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("listing this node's addresses: %w", err)
	}
	return addrs, nil
}

// listAll repeats a listing if the kernel says that it changed meanwhile.
func listAll[T any](list func() ([]T, error)) (all []T, err error) {
	const attempts = 10
	err = netlink.ErrDumpInterrupted
	for n := 0; n < attempts && errors.Is(err, netlink.ErrDumpInterrupted); n++ {
		all, err = list()
	}
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		err = nil
	}
	return all, err
}

// addrOf returns the address of an IPv4 network.
func addrOf(a *net.IPNet) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.IP.To4())
	return ip
}

// interfaceWith returns the name of the interface with an address of this node.
func interfaceWith(node netip.Addr) (string, error) {
	addrs, err := listAddresses()
	if err != nil {
		return "", err
	}
	for _, a := range addrs {
		if addrOf(a.IPNet) != node {
			continue
		}
		dev, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return "", fmt.Errorf("looking for the interface with %v: %w", node, err)
		}
		return dev.Attrs().Name, nil
	}
	return "", fmt.Errorf("node address %v: no interface has it: give this node's address", node)
}

// removesVLANTags reports whether a device removes VLAN tags from the frames that it receives.
func removesVLANTags(name string) bool {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return true
	}
	defer e.Close()
	features, err := e.Features(name)
	return err != nil || features["rx-vlan-hw-parse"]
}

// isDefault reports whether a route is a default route.
func isDefault(r *netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// DefaultInterfaces returns the names of the interfaces with an IPv4 default route, except for the gate's own.
func DefaultInterfaces() ([]string, error) {
	main := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, main, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	var names []string
	seen := map[int]bool{}
	for _, r := range routes {
		if !isDefault(&r) {
			continue
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

// source is the address of InnerDevice on a machine that has no other address. It is link-local (RFC 3927), and outside
// the service ranges, whose addresses the programs take for services.
var source = net.IPv4(169, 254, 46, 1).To4()

// setSource makes sure that programs on this machine have an address from which to reach services. If only lo has one,
// the kernel would send their packets from 0.0.0.0, to which nothing can reply; so InnerDevice gets an address. On
// other machines it has none, because the kernel would prefer it to the machine's own address, by which services know
// their clients.
func (d *devices) setSource() error {
	own := &netlink.Addr{IPNet: &net.IPNet{IP: source, Mask: net.CIDRMask(32, 32)}}
	inner := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: d.inner}}
	addrs, err := d.netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing this machine's addresses: %w", err)
	}
	for _, a := range addrs {
		// The kernel uses the address of another device unless it is valid on that link or on this host alone.
		if a.LinkIndex == d.inner || a.Scope >= unix.RT_SCOPE_LINK {
			continue
		}
		if err := d.netlink.AddrDel(inner, own); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("removing the address %v of %s: %w", own.IP, InnerDevice, err)
		}
		return nil
	}
	if err := d.netlink.AddrReplace(inner, own); err != nil {
		return fmt.Errorf("adding the address %v to %s: %w", own.IP, InnerDevice, err)
	}
	return nil
}

// writeSysctl writes a kernel setting, named relative to /proc/sys. In an unprivileged container, where /proc/sys is
// read-only, it opens a proc file system that shows the same settings and is mounted nowhere (fsopen(2), fsmount(2)),
// which needs CAP_SYS_ADMIN.
func writeSysctl(name, value string) error {
	err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644)
	if !errors.Is(err, unix.EROFS) {
		return err
	}
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("/proc/sys is read-only; opening a proc file system: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("/proc/sys is read-only; creating a proc file system: %w", err)
	}
	proc, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/proc/sys is read-only; mounting a proc file system: %w", err)
	}
	defer unix.Close(proc)
	fd, err := unix.Openat(proc, "sys/"+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: "/proc/sys/" + name, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: "/proc/sys/" + name, Err: err}
	}
	return nil
}
