// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// listenLink is the name of the link of gate_listen.
const listenLink = "listen"

// podLink is the name of the link to a pod's device.
func podLink(ifindex int) string { return fmt.Sprintf("pod-%d", ifindex) }

// Attached returns the XDP mode of each external interface by name: native, generic or off.
func (g *Gate) Attached() map[string]string { return maps.Clone(g.attached) }

// FollowsListen reports whether WatchListen works. Otherwise, readiness must be probed.
func (g *Gate) FollowsListen() bool { return g.followsListen }

// pinPath is the path of a link's pin.
func (g *Gate) pinPath(name string) string { return filepath.Join(g.cfg.linksDir(), name) }

// detachOthers removes pinned links that are not wanted.
func (g *Gate) detachOthers(wanted []string) error {
	entries, err := os.ReadDir(g.cfg.linksDir())
	if err != nil {
		return fmt.Errorf("listing pinned links: %w", err)
	}
	for _, e := range entries {
		if !slices.Contains(wanted, e.Name()) {
			if err := g.detach(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptLink takes over a pinned link and replaces its program by this process's. It returns nil if there is no such
// link, or if its device is gone.
func (g *Gate) adoptLink(name string, prog *ebpf.Program) (link.Link, error) {
	l, err := link.LoadPinnedLink(g.pinPath(name), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		if err = l.Update(prog); err == nil {
			return l, nil
		}
		// The device is gone, or the kernel cannot update this kind of link.
		l.Close()
	}
	g.log.Debug("cannot adopt a pinned link", "link", name, "error", err)
	return nil, g.removePin(name)
}

// removePin removes a link's pin, if there is one.
func (g *Gate) removePin(name string) error {
	if err := os.Remove(g.pinPath(name)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("removing the link %s: %w", name, err)
	}
	return nil
}

// keep pins a new link, so that it outlives this process.
func (g *Gate) keep(name string, l link.Link) error {
	if err := l.Pin(g.pinPath(name)); err != nil {
		l.Close()
		return fmt.Errorf("pinning the link %s: %w", name, err)
	}
	g.links[name] = l
	return nil
}

// detach removes a pinned link, which detaches its program.
func (g *Gate) detach(name string) error {
	if l, ok := g.links[name]; ok {
		delete(g.links, name)
		_ = l.Unpin()
		return l.Close()
	}
	return g.removePin(name)
}

// attachTCX attaches a program to a device by tcx.
func (g *Gate) attachTCX(name string, ifindex int, at ebpf.AttachType, prog *ebpf.Program) error {
	l, err := g.adoptLink(name, prog)
	if err != nil {
		return err
	}
	if l != nil {
		info, err := l.Info()
		if err == nil && info.TCX() != nil && info.TCX().Ifindex == uint32(ifindex) {
			g.links[name] = l
			return nil
		}
		l.Close()
		if err := g.removePin(name); err != nil {
			return err
		}
	}
	l, err = link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: at})
	if err != nil {
		return fmt.Errorf("attaching the gate to interface %d (%s): %w: tcx needs Linux 6.6", ifindex, name, err)
	}
	return g.keep(name, l)
}

// attachListen attaches gate_listen. If that is impossible, readiness must be probed.
func (g *Gate) attachListen() error {
	// A tracing link cannot be updated. The new one is attached before the old one is removed, so that no LISTEN is
	// missed.
	l, err := link.AttachTracing(link.TracingOptions{Program: g.objs.GateListen, AttachType: ebpf.AttachTraceRawTp})
	if err != nil {
		g.log.Warn("cannot follow sockets that enter LISTEN: readiness is probed instead", "error", err)
		return nil
	}
	if err := g.removePin(listenLink); err != nil {
		l.Close()
		return err
	}
	g.followsListen = true
	return g.keep(listenLink, l)
}

// attachNIC attaches gate_nic and gate_xdp to an external interface. It returns the names of the links.
func (g *Gate) attachNIC(name string) ([]string, error) {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w: name one that exists with --interface", name, err)
	}
	index := dev.Attrs().Index
	mac := dev.Attrs().HardwareAddr
	if len(mac) != 6 {
		return nil, fmt.Errorf("interface %s: not an Ethernet device: name another with --interface", name)
	}
	g.nicMACs[index] = mac
	nic := gateNic{Mac: hardwareAddr(mac), Tx: 1}
	if dev.Type() == "veth" {
		nic.Tx = 0
	}
	if err := g.objs.Nics.Put(uint32(index), nic); err != nil {
		return nil, fmt.Errorf("interface %s: writing its MAC address to the gate's map: %w", name, err)
	}
	tcx := "nic-" + name
	if err := g.attachTCX(tcx, index, ebpf.AttachTCXIngress, g.objs.GateNic); err != nil {
		return nil, err
	}
	mode, err := g.attachXDP(name, index)
	if err != nil {
		return nil, err
	}
	g.attached[name] = string(mode)
	return []string{tcx, xdpLink(mode, name)}, nil
}

// xdpLink is the name of the XDP link to an external interface.
func xdpLink(mode XDPMode, device string) string { return "xdp-" + string(mode) + "-" + device }

// xdpAttempt is a way to attach to XDP.
type xdpAttempt struct {
	mode  XDPMode
	flags link.XDPAttachFlags
	prog  *ebpf.Program
}

// xdpAttempts returns the ways that the configuration allows, in order of preference.
func (g *Gate) xdpAttempts() []xdpAttempt {
	native := xdpAttempt{XDPNative, link.XDPDriverMode, g.objs.GateXdp}
	generic := xdpAttempt{XDPGeneric, link.XDPGenericMode, g.objs.GateXdpSkb}
	switch g.cfg.XDPMode {
	case XDPOff:
		return nil
	case XDPNative:
		return []xdpAttempt{native}
	case XDPGeneric:
		return []xdpAttempt{generic}
	default:
		return []xdpAttempt{native, generic}
	}
}

// attachXDP attaches to XDP of an external interface in the first way that works, and returns the mode.
func (g *Gate) attachXDP(name string, index int) (XDPMode, error) {
	attempts := g.xdpAttempts()
	for _, a := range attempts {
		pin := xdpLink(a.mode, name)
		l, err := g.adoptLink(pin, a.prog)
		if err != nil {
			return "", err
		}
		if l == nil {
			continue
		}
		if info, err := l.Info(); err == nil && info.XDP() != nil && info.XDP().Ifindex == uint32(index) {
			g.links[pin] = l
			return a.mode, nil
		}
		l.Close()
		if err := g.detach(pin); err != nil {
			return "", err
		}
	}
	// A link of another mode would be in the way.
	for _, old := range []XDPMode{XDPNative, XDPGeneric} {
		if err := g.detach(xdpLink(old, name)); err != nil {
			return "", err
		}
	}
	if len(attempts) == 0 {
		return XDPOff, nil
	}
	var errs []error
	for _, a := range attempts {
		l, err := link.AttachXDP(link.XDPOptions{Program: a.prog, Interface: index, Flags: a.flags})
		if err == nil {
			return a.mode, g.keep(xdpLink(a.mode, name), l)
		}
		errs = append(errs, err)
	}
	hint := "try --xdp-mode generic"
	if strings.Contains(errors.Join(errs...).Error(), "busy") {
		hint = "another XDP program is attached: detach it, or use --xdp-mode off"
	}
	return "", fmt.Errorf("interface %s: attaching XDP (%s): %w: %s", name, g.cfg.XDPMode, errors.Join(errs...), hint)
}

// attachPod attaches gate_pod to a pod's device, unless it is attached. The caller holds podTable.mu, or is Open.
func (g *Gate) attachPod(ifindex int) error {
	name := podLink(ifindex)
	if g.links[name] != nil {
		return nil
	}
	return g.attachTCX(name, ifindex, ebpf.AttachTCXIngress, g.objs.GatePod)
}

// detachPod detaches gate_pod from the device of a removed pod, unless the pod may still be a client. The caller holds
// podTable.mu.
func (g *Gate) detachPod(ifindex int) error {
	if g.shortcuts.devices[ifindex] {
		return nil
	}
	return g.detach(podLink(ifindex))
}
