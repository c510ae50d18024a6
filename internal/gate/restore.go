// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/upkeep"
)

// Kinds of what the gate sets up on the machine, as Restored counts them.
const (
	partDevice  = "device"  // the pair of InnerDevice and OuterDevice
	partLink    = "link"    // each of the two is up
	partSysctl  = "sysctl"  // settings of the two
	partAddress = "address" // of InnerDevice, on a machine without another one
	partRoute   = "route"   // service ranges, and VIPs outside them, to InnerDevice
	partProgram = "program" // attached programs: tcx, netkit and XDP
	partPin     = "pin"     // of maps and links
)

// Restored returns how often the gate has put back what somebody else had removed or changed on the machine, by kind:
// device, link, sysctl, address, route, program and pin.
func (g *Gate) Restored() map[string]uint64 { return g.upkeep.Counts() }

// restore puts back what somebody else has removed or changed. The calling thread must be in the gate's network
// namespace.
func (g *Gate) restore() {
	g.upkeep.Keep(g.dev.parts(g.cfg.owner()))
	if g.cfg.EncapPort == 0 {
		g.upkeep.Keep([]upkeep.Part{g.dev.sourcePart()})
	}
	g.restoreRoutes()
	g.keepFirst()
	g.restoreXDP()
	g.restorePins()
}

// parts lists what the gate has set up of its devices.
func (d *devices) parts(owner string) []upkeep.Part {
	parts := []upkeep.Part{{
		Kind: partDevice, Name: InnerDevice,
		Intact: func() (bool, error) {
			_, err := netlink.LinkByIndex(d.inner)
			if errors.As(err, new(netlink.LinkNotFoundError)) {
				return false, nil
			}
			return err == nil, err
		},
		Put: func() error { return d.recreate(owner) },
	}}
	for _, device := range []struct {
		name  string
		index int
	}{{InnerDevice, d.inner}, {OuterDevice, d.outer}} {
		parts = append(parts, upkeep.Part{
			Kind: partLink, Name: device.name,
			Intact: func() (bool, error) {
				l, err := netlink.LinkByIndex(device.index)
				if err != nil {
					return false, fmt.Errorf("looking for %s: %w", device.name, err)
				}
				return l.Attrs().Flags&net.FlagUp != 0 && l.Attrs().RawFlags&unix.IFF_NOARP != 0, nil
			},
			Put: func() error { return bringUp(device.name, device.index) },
		})
		for _, s := range sysctlsOf(device.name) {
			parts = append(parts, upkeep.Part{
				Kind: partSysctl, Name: s.name,
				Intact: func() (bool, error) { return upkeep.SettingIs("/proc/sys/"+s.name, s.value) },
				Put:    func() error { return writeSysctl(s.name, s.value) },
			})
		}
	}
	return parts
}

// recreate creates the gate's devices again, with the indices and the MAC address that the programs know.
func (d *devices) recreate(owner string) error {
	pair := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	inner := nl.NewIfInfomsg(unix.AF_UNSPEC)
	inner.Index = int32(d.inner)
	pair.AddData(inner)
	pair.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(InnerDevice)))
	pair.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, d.innerMAC))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	outer := nl.NewIfInfomsg(unix.AF_UNSPEC)
	outer.Index = int32(d.outer)
	peer.AddChild(outer)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(OuterDevice))
	pair.AddData(info)
	if _, err := pair.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("creating the device %s again: %w", InnerDevice, err)
	}
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: d.inner}}
	if err := netlink.LinkSetAlias(link, aliasOf(owner)); err != nil {
		return fmt.Errorf("setting the owner of %s: %w", InnerDevice, err)
	}
	for name, index := range map[string]int{InnerDevice: d.inner, OuterDevice: d.outer} {
		if err := setUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}); err != nil {
			return err
		}
	}
	return nil
}

// sourcePart is the address of InnerDevice. It is intact where setSource would change nothing.
func (d *devices) sourcePart() upkeep.Part {
	return upkeep.Part{
		Kind: partAddress, Name: source.String(),
		Intact: func() (bool, error) {
			addrs, err := d.netlink.AddrList(nil, netlink.FAMILY_V4)
			if err != nil {
				return false, fmt.Errorf("listing this machine's addresses: %w", err)
			}
			return slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
				return a.LinkIndex == d.inner && a.IP.Equal(source) || a.LinkIndex != d.inner && a.Scope < unix.RT_SCOPE_LINK
			}), nil
		},
		Put: d.setSource,
	}
}

// restoreRoutes puts back routes to InnerDevice. Meanwhile no VIP comes or goes.
func (g *Gate) restoreRoutes() {
	g.services.mu.Lock()
	defer g.services.mu.Unlock()
	have, listed := g.dev.routes()
	var parts []upkeep.Part
	for _, p := range g.wantedRoutes() {
		parts = append(parts, upkeep.Part{
			Kind: partRoute, Name: p.String(),
			Intact: func() (bool, error) { return slices.Contains(have, p), listed },
			Put:    func() error { return g.dev.route(p) },
		})
	}
	g.upkeep.Keep(parts)
}

// routes returns the prefixes that are routed to InnerDevice.
func (d *devices) routes() (all []netip.Prefix, err error) {
	have, err := d.netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: d.inner}, netlink.RT_FILTER_OIF)
	if err != nil {
		return nil, fmt.Errorf("listing the routes to %s: %w", InnerDevice, err)
	}
	for _, r := range have {
		if r.Dst == nil {
			continue
		}
		bits, _ := r.Dst.Mask.Size()
		a, _ := netip.AddrFromSlice(r.Dst.IP.To4())
		all = append(all, netip.PrefixFrom(a, bits))
	}
	return all, nil
}

// restoreXDP attaches XDP again where somebody has detached it.
func (g *Gate) restoreXDP() {
	g.nics.mu.Lock()
	var parts []upkeep.Part
	for name, n := range g.nics.byName {
		if n.xdp == XDPOff {
			continue
		}
		pin := xdpLink(n.xdp, name)
		parts = append(parts, upkeep.Part{
			Kind: partProgram, Name: pin,
			Intact: func() (bool, error) { return g.attachedXDP(pin) },
			Put: func() error {
				g.nics.mu.Lock()
				n.xdp, n.mtu = XDPOff, 0 // as if its driver were to be tried again
				g.nics.mu.Unlock()
				return g.syncNICs(false)
			},
		})
	}
	g.nics.mu.Unlock()
	g.upkeep.Keep(parts)
}

// attachedXDP reports whether an XDP link is attached to its device.
func (g *Gate) attachedXDP(name string) (bool, error) {
	g.links.mu.Lock()
	defer g.links.mu.Unlock()
	l := g.links.byName[name]
	if l == nil {
		return true, nil // its interface is gone
	}
	info, err := l.Info()
	if err != nil {
		return false, fmt.Errorf("reading the link %s: %w", name, err)
	}
	return info.XDP() != nil && info.XDP().Ifindex != 0, nil
}

// pinned is what the gate has pinned: a map or a link.
type pinned interface {
	Pin(path string) error
	Unpin() error
}

// restorePins pins maps and links again whose pins are gone. Without them the next daemon would begin anew.
func (g *Gate) restorePins() {
	g.links.mu.Lock()
	defer g.links.mu.Unlock()
	pins := map[string]pinned{}
	for name, m := range g.objs.pinnedMaps() {
		pins[filepath.Join(g.cfg.mapsDir(), name)] = m
	}
	for name, l := range g.links.byName {
		pins[g.pinPath(name)] = l
	}
	var parts []upkeep.Part
	for _, path := range slices.Sorted(maps.Keys(pins)) {
		parts = append(parts, upkeep.Part{
			Kind: partPin, Name: path,
			Intact: func() (bool, error) {
				_, err := os.Lstat(path)
				if errors.Is(err, os.ErrNotExist) {
					return false, nil
				}
				return err == nil, err
			},
			Put: func() error { return g.pinAgain(pins[path], path) },
		})
	}
	g.upkeep.Keep(parts)
}

// pinAgain pins a map or a link whose pin is gone, perhaps with the file system that it was in.
func (g *Gate) pinAgain(p pinned, path string) error {
	if err := g.cfg.ensureBPF(); err != nil {
		return err
	}
	if err := g.cfg.ensureDirs(); err != nil {
		return err
	}
	_ = p.Unpin() // or Pin takes it for pinned
	if err := p.Pin(path); err != nil {
		return fmt.Errorf("pinning %s again: %w", path, err)
	}
	return nil
}
