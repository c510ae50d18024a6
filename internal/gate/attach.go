// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachPoint is a place in the kernel where a program of the gate runs before all others.
type attachPoint struct {
	ifindex int
	at      ebpf.AttachType // of tcx or netkit; zero if there is no order, such as in XDP
	prog    *ebpf.Program
}

// attach attaches the program before all others.
func (p *attachPoint) attach() (link.Link, error) {
	if p.at == ebpf.AttachNetkitPeer {
		return link.AttachNetkit(link.NetkitOptions{
			Interface: p.ifindex, Program: p.prog, Attach: p.at, Anchor: link.Head(),
		})
	}
	return link.AttachTCX(link.TCXOptions{
		Interface: p.ifindex, Program: p.prog, Attach: p.at, Anchor: link.Head(),
	})
}

// has reports whether a link is at this point.
func (p *attachPoint) has(info *link.Info) bool {
	if p.at == ebpf.AttachNetkitPeer {
		nk := info.Netkit()
		return nk != nil && nk.Ifindex == uint32(p.ifindex) && ebpf.AttachType(nk.AttachType) == p.at
	}
	tcx := info.TCX()
	return tcx != nil && tcx.Ifindex == uint32(p.ifindex) && ebpf.AttachType(tcx.AttachType) == p.at
}

// attachment is an attached program.
type attachment struct {
	link.Link
	at attachPoint
}

// attachments are the attached programs, by name of the pin.
type attachments struct {
	mu     sync.Mutex // taken after podTable.mu and nics.mu
	byName map[string]*attachment
}

func (a *attachments) has(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byName[name] != nil
}

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
// link, or its device is gone. The caller holds links.mu.
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

// keep pins a new link, which thus outlives this process. The caller holds links.mu.
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
	// Packets that a netkit program redirects or drops never reach tcx.
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

// Programs of others, such as those of a CNI plugin, may end the chain of programs of a device: programs behind them
// never run. The kernel does not tell when a program is attached earlier in the chain, so the gate polls.

// Reattached returns how often the gate had to attach a program again, because another program ran before it or had
// detached it.
func (g *Gate) Reattached() uint64 { return g.reattached.Load() }

// keepFirst makes the gate's programs run first wherever they are attached.
func (g *Gate) keepFirst() {
	g.links.mu.Lock()
	defer g.links.mu.Unlock()
	for name, a := range g.links.byName {
		if a.at.at == ebpf.AttachNone {
			continue
		}
		was, err := a.place()
		if err == nil && was == 0 {
			continue
		}
		if err == nil {
			err = g.reattach(name, a)
		}
		switch {
		case errors.Is(err, unix.ENODEV): // its device is being removed
		case err != nil:
			g.log.Error("the gate may not see packets", "link", name, "interface", a.at.ifindex, "error", err)
		case was < 0:
			g.upkeep.Count(partProgram)
			g.log.Warn("another program detached the gate: attached again", "link", name, "interface", a.at.ifindex)
		default:
			g.log.Warn("programs of others were attached before the gate's: attached again before them",
				"link", name, "interface", a.at.ifindex, "programs", was)
		}
	}
}

// place returns how many programs run before this one; -1 if it is not attached.
func (a *attachment) place() (int, error) {
	info, err := a.Info()
	if err != nil {
		return 0, fmt.Errorf("reading a link: %w", err)
	}
	all, err := link.QueryPrograms(link.QueryOptions{Target: a.at.ifindex, Attach: a.at.at})
	if err != nil {
		return 0, fmt.Errorf("listing the programs of interface %d: %w", a.at.ifindex, err)
	}
	for i := range all.Programs {
		if id, ok := all.Programs[i].LinkID(); ok && id == info.ID {
			return i, nil
		}
	}
	return -1, nil
}

// reattach moves a program before all others. A program can be attached to a device only once, and a device without the
// gate would send replies from the addresses of pods. So a stand-in is attached while the program is moved. The caller
// holds links.mu.
func (g *Gate) reattach(name string, a *attachment) error {
	g.reattached.Add(1)
	stand, err := newStandIn(a.at.prog)
	if err != nil {
		return err
	}
	defer stand.close()
	at := a.at
	at.prog = stand.prog
	l, err := at.attach()
	if err != nil {
		return fmt.Errorf("attaching a stand-in to interface %d (%s): %w", at.ifindex, name, err)
	}
	defer l.Close()
	_ = a.Detach() // takes effect before it returns; drop detaches again if it fails
	if err := g.drop(name); err != nil {
		return err
	}
	return g.attachFirst(name, a.at)
}

// standIn is a program that only calls another one and returns its result.
type standIn struct {
	prog  *ebpf.Program
	calls *ebpf.Map
}

func newStandIn(prog *ebpf.Program) (s standIn, err error) {
	s.calls, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "gate_stand_in", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: prog}},
	})
	if err != nil {
		return s, fmt.Errorf("creating a stand-in: %w", err)
	}
	const next = -1 // TCX_NEXT in linux/bpf.h
	s.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "gate_stand_in", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMapPtr(asm.R2, s.calls.FD()),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnTailCall.Call(),
			asm.Mov.Imm(asm.R0, next),
			asm.Return(),
		},
	})
	if err != nil {
		s.calls.Close()
		return s, fmt.Errorf("creating a stand-in: %w", err)
	}
	return s, nil
}

func (s *standIn) close() {
	s.prog.Close()
	s.calls.Close()
}
