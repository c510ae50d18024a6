// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
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

// xdpAttempts returns the way that the configuration allows; none for off.
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

// attachXDP attaches to XDP of an external interface if it can be used there, and sets the mode. The gate works without
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
