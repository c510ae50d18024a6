// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Programs of others, such as those of a CNI plugin, may end the chain of programs of a device: what comes behind them
// never runs. The kernel does not notify about programs attached earlier in the chain, so the gate polls.

// Reattached returns how often the gate had to attach again because another program came before its own, or
// had detached it.
func (g *Gate) Reattached() uint64 { return g.reattached.Load() }

// keepFirst makes the gate's programs the first ones wherever they are attached.
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
		case errors.Is(err, unix.ENODEV): // its removal is on the way
		case err != nil:
			g.log.Error("the gate may not see packets", "link", name, "interface", a.at.ifindex, "error", err)
		case was < 0:
			g.log.Warn("another program detached the gate: attached again", "link", name, "interface", a.at.ifindex)
		default:
			g.log.Warn("programs of others were attached before the gate's: attached again before them",
				"link", name, "interface", a.at.ifindex, "programs", was)
		}
	}
}

// place returns how many programs come before this one; -1 if it is not attached.
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

// reattach attaches before all others. A program can be attached to a device only once, and a device without the gate
// would send replies with the addresses of pods. So a stand-in is attached before the program is moved, and detached
// after that. The caller holds links.mu.
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
	_ = a.Detach() // so that it is done when Detach returns; drop makes sure
	if err := g.drop(name); err != nil {
		return err
	}
	return g.attachFirst(name, a.at)
}

// standIn is a program that only calls another one, and returns what that returns.
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
