// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// xdpLink is the name of the XDP link to an external interface.
func xdpLink(mode XDPMode, device string) string { return "xdp-" + string(mode) + "-" + device }

// refusesXDP returns why XDP must not be used on an interface; empty if it may be. vlans are the VLAN devices on it.
func (g *Gate) refusesXDP(d netlink.Link, vlans []string) string {
	if g.cfg.XDPMode == XDPOff {
		return ""
	}
	return whyNoXDP(d.Type(), vlans, func() bool { return removesVLANTags(d.Attrs().Name) })
}

// whyNoXDP returns why XDP must not be used on an interface of some type, with VLAN devices on it; empty if it may be.
// untags reports whether the device removes VLAN tags from frames.
func whyNoXDP(kind string, vlans []string, untags func() bool) string {
	switch {
	case kind == "bond" || kind == "team":
		return "it is a " + kind + ", where XDP would run on the members, which the gate does not know"
	case len(vlans) > 0 && untags():
		return "it removes the tags (rx-vlan-hw-parse) of frames for " + strings.Join(vlans, ", ") +
			", so XDP cannot distinguish them from its own"
	}
	return ""
}

// xdpAttempt is a way to attach to XDP.
type xdpAttempt struct {
	mode  XDPMode
	flags link.XDPAttachFlags
	prog  *ebpf.Program
}

// xdpAttempts returns the ways to attach that the configuration allows; none for off.
func (g *Gate) xdpAttempts() []xdpAttempt {
	switch g.cfg.XDPMode {
	case XDPOff:
		return nil
	case XDPGeneric:
		return []xdpAttempt{{XDPGeneric, link.XDPGenericMode, g.objs.GateXdpSkb}}
	default:
		return []xdpAttempt{{XDPNative, link.XDPDriverMode, g.objs.GateXdp}}
	}
}

// attachXDP attaches to an external interface by XDP if possible, and sets the interface's mode. The gate works without
// XDP, so it is an error only if the configured mode is native or generic and the driver refuses it.
func (g *Gate) attachXDP(n *nic, name string) error {
	n.xdp, n.why, n.busy = XDPOff, n.plan, false
	attempts := g.xdpAttempts()
	if n.plan != "" {
		g.log.Warn("XDP is off", "interface", name, "reason", n.plan)
		attempts = nil
	}
	for _, a := range attempts {
		if adopted, err := g.adoptXDP(n.index, name, a); adopted || err != nil {
			n.xdp = a.mode
			return err
		}
	}
	// A link of another mode would be in the way.
	for _, old := range []XDPMode{XDPNative, XDPGeneric} {
		if err := g.detach(xdpLink(old, name)); err != nil {
			return err
		}
	}
	for _, a := range attempts {
		l, err := link.AttachXDP(link.XDPOptions{Program: a.prog, Interface: n.index, Flags: a.flags})
		switch {
		case err == nil:
			n.xdp, n.why = a.mode, ""
			g.links.mu.Lock()
			defer g.links.mu.Unlock()
			return g.keep(xdpLink(a.mode, name), &attachment{Link: l})
		case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST):
			n.busy, n.why = true, "another XDP program is attached"
			g.log.Warn("XDP is off: another XDP program is attached: SYNs of cold services cost more",
				"interface", name)
		case g.cfg.XDPMode == XDPAuto:
			n.why = fmt.Sprintf("the driver refuses native XDP: %v", err)
		default:
			return fmt.Errorf("interface %s: attaching XDP (%s): %w: try --xdp-mode auto", name, a.mode, err)
		}
	}
	return nil
}

// adoptXDP takes over the pinned XDP link of an earlier process. It reports whether there is one.
func (g *Gate) adoptXDP(index int, name string, a xdpAttempt) (bool, error) {
	g.links.mu.Lock()
	defer g.links.mu.Unlock()
	pin := xdpLink(a.mode, name)
	l, err := g.adoptLink(pin, a.prog)
	if err != nil || l == nil {
		return false, err
	}
	if info, err := l.Info(); err == nil && info.XDP() != nil && info.XDP().Ifindex == uint32(index) {
		g.links.byName[pin] = &attachment{Link: l}
		return true, nil
	}
	l.Close()
	return false, g.drop(pin)
}

// InspectXDP returns how XDP is attached, or would be by XDPAuto, to the interfaces of the calling thread's network
// namespace with an IPv4 default route. It changes nothing.
func InspectXDP() (map[string]AttachedXDP, error) {
	names, err := DefaultInterfaces()
	if err != nil {
		return nil, err
	}
	devices, err := listDevices()
	if err != nil {
		return nil, err
	}
	vlans := vlansOn(devices)
	out := map[string]AttachedXDP{}
	for _, name := range names {
		d, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", name, err)
		}
		out[name] = inspectXDP(d, vlans[d.Attrs().Index])
	}
	return out, nil
}

func inspectXDP(d netlink.Link, vlans []string) AttachedXDP {
	const generic = 2 // XDP_ATTACHED_SKB, linux/if_link.h
	if x := d.Attrs().Xdp; x != nil && x.Attached {
		name := programName(x.ProgId)
		switch {
		case !strings.HasPrefix(name, "gate_xdp"):
			return AttachedXDP{XDPOff, fmt.Sprintf("another XDP program is attached (%s, ID %d)", name, x.ProgId)}
		case x.AttachMode == generic:
			return AttachedXDP{Mode: XDPGeneric}
		default:
			return AttachedXDP{Mode: XDPNative}
		}
	}
	why := whyNoXDP(d.Type(), vlans, func() bool { return removesVLANTags(d.Attrs().Name) })
	if why != "" {
		return AttachedXDP{XDPOff, why}
	}
	if has, err := driverHasXDP(d.Attrs().Index); err == nil && !has {
		return AttachedXDP{XDPOff, "its driver does not support native XDP"}
	}
	return AttachedXDP{Mode: XDPNative}
}

// programName returns the name of an eBPF program, which the kernel cuts to 15 bytes; "?" if it cannot be read.
func programName(id uint32) string {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return "?"
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "?"
	}
	return info.Name
}

// genlHeader is struct genlmsghdr: command, version, and two reserved bytes that must be zero, which nl.Genlmsg omits.
type genlHeader [4]byte

// Len implements nl.NetlinkRequestData.
func (h genlHeader) Len() int { return len(h) }

// Serialize implements nl.NetlinkRequestData.
func (h genlHeader) Serialize() []byte { return h[:] }

// driverHasXDP asks the kernel whether a device's driver supports native XDP (linux/netdev.h, since Linux 6.3).
func driverHasXDP(index int) (bool, error) {
	const (
		getDevice   = 1 // NETDEV_CMD_DEV_GET
		attrIfindex = 1 // NETDEV_A_DEV_IFINDEX
		attrXDP     = 3 // NETDEV_A_DEV_XDP_FEATURES
		basic       = 1 // NETDEV_XDP_ACT_BASIC
	)
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return false, fmt.Errorf("looking for the netlink family netdev: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	req.AddData(genlHeader{getDevice, 1})
	req.AddData(nl.NewRtAttr(attrIfindex, nl.Uint32Attr(uint32(index))))
	replies, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return false, fmt.Errorf("reading the XDP features of interface %d: %w", index, err)
	}
	for _, r := range replies {
		attrs, err := nl.ParseRouteAttr(r[nl.SizeofGenlmsg:])
		if err != nil {
			return false, fmt.Errorf("reading the XDP features of interface %d: %w", index, err)
		}
		for _, a := range attrs {
			if a.Attr.Type == attrXDP && len(a.Value) == 8 {
				return nl.NativeEndian().Uint64(a.Value)&basic != 0, nil
			}
		}
	}
	return false, fmt.Errorf("interface %d: the kernel does not say its XDP features", index)
}
