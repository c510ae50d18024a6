// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// attachAll attaches the gate to wangell0, to the external interfaces and to the pods that are known, and
// detaches it from interfaces that are no longer wanted.
func (g *Gate) attachAll() error {
	wanted := []string{"listen"}
	if err := g.attachTCX("wangell0-egress", g.dev.inner, ebpf.AttachTCXEgress, g.objs.GateLocal); err != nil {
		return err
	}
	if err := g.attachTCX("wangell0-ingress", g.dev.inner, ebpf.AttachTCXIngress, g.objs.GateReleased); err != nil {
		return err
	}
	wanted = append(wanted, "wangell0-egress", "wangell0-ingress")
	if err := g.attachListen(); err != nil {
		return err
	}
	for _, name := range g.cfg.Interfaces {
		if err := g.attachNIC(name); err != nil {
			return err
		}
		wanted = append(wanted, "nic-"+name, xdpWay{mode: XDPMode(g.attached[name])}.pin(name))
	}
	for _, index := range g.podTable.used() {
		p := g.pods.at(index)
		if p.Ifindex == 0 {
			continue // it is on another node
		}
		// A pod whose device is gone is the daemon's to remove.
		if err := g.attachPod(int(p.Ifindex)); err != nil {
			g.log.Warn("a pod's device cannot be attached to", "pod", p.Id, "error", err)
		}
		wanted = append(wanted, podLink(p.Ifindex))
	}
	if g.cfg.Shortcut {
		if err := g.syncShortcuts(); err != nil {
			return err
		}
		for index := range g.shortcuts.devices {
			wanted = append(wanted, podLink(uint32(index)))
		}
	}
	return g.detachOthers(wanted)
}

func podLink(ifindex uint32) string { return fmt.Sprintf("pod-%d", ifindex) }

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

// adoptLink takes over a pinned link and gives it the program of this process. It returns nil when there is
// none, or when its device is gone.
func (g *Gate) adoptLink(name string, prog *ebpf.Program) (link.Link, error) {
	path := filepath.Join(g.cfg.linksDir(), name)
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		if err = l.Update(prog); err == nil {
			return l, nil
		}
		// The device went away, or the kernel cannot update this kind of link: make a new one.
		l.Close()
	}
	g.log.Debug("a pinned link is not to be used again", "link", name, "error", err)
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("removing the old link %s: %w", name, err)
	}
	return nil, nil
}

// keep pins a new link, so that it outlives this process.
func (g *Gate) keep(name string, l link.Link) error {
	if err := l.Pin(filepath.Join(g.cfg.linksDir(), name)); err != nil {
		l.Close()
		return fmt.Errorf("pinning the link %s: %w", name, err)
	}
	g.links[name] = l
	return nil
}

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
		if err := os.Remove(filepath.Join(g.cfg.linksDir(), name)); err != nil {
			return fmt.Errorf("removing the old link %s: %w", name, err)
		}
	}
	l, err = link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: at})
	if err != nil {
		return fmt.Errorf("attaching the gate to interface %d (%s): %w: tcx needs Linux 6.6", ifindex, name, err)
	}
	return g.keep(name, l)
}

// attachListen follows sockets that enter LISTEN. Without it, readiness is found by probing.
func (g *Gate) attachListen() error {
	// A tracing link cannot be updated; a new one is attached before the old one goes, so no LISTEN is missed.
	path := filepath.Join(g.cfg.linksDir(), "listen")
	l, err := link.AttachTracing(link.TracingOptions{Program: g.objs.GateListen, AttachType: ebpf.AttachTraceRawTp})
	if err != nil {
		g.log.Warn("sockets that listen cannot be followed: readiness is found by probing", "error", err)
		return nil
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		l.Close()
		return fmt.Errorf("removing the old link listen: %w", err)
	}
	g.followsListen = true
	return g.keep("listen", l)
}

// attachNIC attaches to an external interface: gate_nic by tcx, gate_xdp by XDP.
func (g *Gate) attachNIC(name string) error {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w: name one that exists with --interface", name, err)
	}
	index := dev.Attrs().Index
	mac := dev.Attrs().HardwareAddr
	if len(mac) != 6 {
		return fmt.Errorf("interface %s: not an Ethernet device: name another with --interface", name)
	}
	g.nicMACs[index] = mac
	nic := gateNic{Mac: hardwareAddr(mac), Tx: 1}
	if dev.Type() == "veth" {
		nic.Tx = 0
	}
	if err := g.objs.Nics.Put(uint32(index), nic); err != nil {
		return fmt.Errorf("interface %s: telling the gate its MAC address: %w", name, err)
	}
	if err := g.attachTCX("nic-"+name, index, ebpf.AttachTCXIngress, g.objs.GateNic); err != nil {
		return err
	}
	return g.attachXDP(name, index)
}

// xdpWay is one way to attach to XDP.
type xdpWay struct {
	mode  XDPMode
	flags link.XDPAttachFlags
	prog  *ebpf.Program
}

// pin is the name of a link's pin.
func (w xdpWay) pin(device string) string { return "xdp-" + string(w.mode) + "-" + device }

// attachXDP attaches to XDP of an external interface in the first way that works.
func (g *Gate) attachXDP(name string, index int) error {
	ways := []xdpWay{{XDPNative, link.XDPDriverMode, g.objs.GateXdp}, {XDPGeneric, link.XDPGenericMode, g.objs.GateXdpSkb}}
	switch g.cfg.XDPMode {
	case XDPOff:
		g.attached[name] = string(XDPOff)
		ways = nil
	case XDPNative:
		ways = ways[:1]
	case XDPGeneric:
		ways = ways[1:]
	}
	for _, w := range ways {
		l, err := g.adoptLink(w.pin(name), w.prog)
		if err != nil {
			return err
		}
		if l == nil {
			continue
		}
		if info, err := l.Info(); err == nil && info.XDP() != nil && info.XDP().Ifindex == uint32(index) {
			g.links[w.pin(name)] = l
			g.attached[name] = string(w.mode)
			return nil
		}
		l.Close()
		if err := g.detach(w.pin(name)); err != nil {
			return err
		}
	}
	// One of another mode is in the way.
	for _, old := range []XDPMode{XDPNative, XDPGeneric} {
		if err := g.detach(xdpWay{mode: old}.pin(name)); err != nil {
			return err
		}
	}
	var errs []error
	for _, w := range ways {
		l, err := link.AttachXDP(link.XDPOptions{Program: w.prog, Interface: index, Flags: w.flags})
		if err == nil {
			g.attached[name] = string(w.mode)
			return g.keep(w.pin(name), l)
		}
		errs = append(errs, err)
	}
	if len(ways) == 0 {
		return nil
	}
	hint := "try --xdp-mode generic"
	if strings.Contains(errors.Join(errs...).Error(), "busy") {
		hint = "another XDP program is there: detach it, or use --xdp-mode off"
	}
	return fmt.Errorf("interface %s: attaching XDP (%s): %w: %s", name, g.cfg.XDPMode, errors.Join(errs...), hint)
}

// detach removes a pinned link, and with it its program's attachment.
func (g *Gate) detach(name string) error {
	if l, ok := g.links[name]; ok {
		delete(g.links, name)
		_ = l.Unpin()
		return l.Close()
	}
	if err := os.Remove(filepath.Join(g.cfg.linksDir(), name)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("removing the link %s: %w", name, err)
	}
	return nil
}

// Attached tells the external interfaces and the mode of XDP of each: native, generic or off.
func (g *Gate) Attached() map[string]string { return g.attached }

// hardwareAddr copies a MAC address into the gate's form.
func hardwareAddr(m net.HardwareAddr) (out [6]uint8) {
	copy(out[:], m)
	return out
}
