// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// listenLink is the name of the link of gate_listen.
const listenLink = "listen"

// podLink is the name of the link to a pod's device.
func podLink(ifindex int) string { return fmt.Sprintf("pod-%d", ifindex) }

// FollowsListen reports whether WatchListen works. Otherwise, readiness must be probed.
func (g *Gate) FollowsListen() bool { return g.followsListen }

// pinPath is the path of a link's pin. A bpf file system refuses names with a dot, which devices may have; a colon,
// which they cannot have, takes its place.
func (g *Gate) pinPath(name string) string {
	return filepath.Join(g.cfg.linksDir(), strings.ReplaceAll(name, ".", ":"))
}

// detachOthers removes the pinned links of an earlier process that this one does not use.
func (g *Gate) detachOthers() error {
	entries, err := os.ReadDir(g.cfg.linksDir())
	if err != nil {
		return fmt.Errorf("listing pinned links: %w", err)
	}
	for _, e := range entries {
		name := strings.ReplaceAll(e.Name(), ":", ".") // see pinPath
		if g.links.has(name) {
			continue
		}
		if err := g.removePin(name); err != nil {
			return err
		}
	}
	return nil
}

// adoptLink takes over a pinned link and replaces its program by this process's. It returns nil if there is no such
// link, or if its device is gone. The caller holds links.mu.
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

// removePin removes a link's pin, if there is one, and detaches the link at once: the kernel would do that a little
// later, when another link may already be wanted there.
func (g *Gate) removePin(name string) error {
	if l, err := link.LoadPinnedLink(g.pinPath(name), nil); err == nil {
		_ = l.Detach() // the device may be gone; tracing links cannot be detached
		l.Close()
	}
	if err := os.Remove(g.pinPath(name)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("removing the link %s: %w", name, err)
	}
	return nil
}

// keep pins a new link, so that it outlives this process. The caller holds links.mu.
func (g *Gate) keep(name string, l *attachment) error {
	if err := l.Pin(g.pinPath(name)); err != nil {
		l.Close()
		return fmt.Errorf("pinning the link %s: %w", name, err)
	}
	g.links.byName[name] = l
	return nil
}

// detach removes a pinned link, which detaches its program.
func (g *Gate) detach(name string) error {
	g.links.mu.Lock()
	defer g.links.mu.Unlock()
	return g.drop(name)
}

// drop is detach for a caller that holds links.mu.
func (g *Gate) drop(name string) error {
	if l, ok := g.links.byName[name]; ok {
		delete(g.links.byName, name)
		_ = l.Detach() // as removePin does
		_ = l.Unpin()
		return l.Close()
	}
	return g.removePin(name)
}

// attachTCX attaches a program to a device by tcx, before the programs of others.
func (g *Gate) attachTCX(name string, ifindex int, at ebpf.AttachType, prog *ebpf.Program) error {
	return g.attach(name, attachPoint{ifindex, at, prog})
}

// attach attaches a program at a point, or adopts the link that an earlier process has pinned.
func (g *Gate) attach(name string, at attachPoint) error {
	g.links.mu.Lock()
	defer g.links.mu.Unlock()
	l, err := g.adoptLink(name, at.prog)
	if err != nil {
		return err
	}
	if l != nil {
		if info, err := l.Info(); err == nil && at.has(info) {
			g.links.byName[name] = &attachment{l, at}
			return nil
		}
		l.Close()
		if err := g.removePin(name); err != nil {
			return err
		}
	}
	return g.attachFirst(name, at)
}

// attachFirst attaches a program before all others at its point. The caller holds links.mu.
func (g *Gate) attachFirst(name string, at attachPoint) error {
	l, err := at.attach()
	if err != nil {
		hint := ""
		if errors.Is(err, ebpf.ErrNotSupported) {
			hint = ": tcx needs Linux 6.6"
		}
		return fmt.Errorf("attaching the gate to interface %d (%s): %w%s", at.ifindex, name, err, hint)
	}
	return g.keep(name, &attachment{l, at})
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
	g.links.mu.Lock()
	defer g.links.mu.Unlock()
	return g.keep(listenLink, &attachment{Link: l})
}

// attachPod attaches gate_pod to a pod's device, unless it is attached. The calling thread must be in the gate's
// network namespace. The caller holds podTable.mu, or is Open.
func (g *Gate) attachPod(ifindex int) error {
	name := podLink(ifindex)
	if g.links.has(name) {
		return nil
	}
	tcx := attachPoint{ifindex, ebpf.AttachTCXIngress, g.objs.GatePod}
	if dev, err := netlink.LinkByIndex(ifindex); err != nil || dev.Type() != "netkit" {
		return g.attach(name, tcx)
	}
	// Packets that programs there redirect or drop never reach tcx.
	err := g.attach(name, attachPoint{ifindex, ebpf.AttachNetkitPeer, g.objs.GatePod})
	if err == nil || errors.Is(err, unix.ENODEV) {
		return err
	}
	g.log.Debug("cannot attach to a netkit device as such: using tcx", "interface", ifindex, "error", err)
	return g.attach(name, tcx)
}

// detachPod detaches gate_pod from the device of a removed pod, unless the pod may still be a client. The caller holds
// podTable.mu.
func (g *Gate) detachPod(ifindex int) error {
	if g.shortcuts.devices[ifindex] {
		return nil
	}
	return g.detach(podLink(ifindex))
}
