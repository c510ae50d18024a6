// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	wangellgate "wangell.loutres.me/internal/gate"
)

// gateFeatures lists kernel features of the gate that the package features can detect.
var gateFeatures = []struct {
	name string
	use  string
	have func() error
}{
	{"XDP programs", "packets of clients on other machines", func() error { return features.HaveProgramType(ebpf.XDP) }},
	{"traffic control programs", "packets of clients on this machine, replies of pods",
		func() error { return features.HaveProgramType(ebpf.SchedCLS) }},
	{"hash maps", "flows and parked SYNs", func() error {
		return errors.Join(features.HaveMapType(ebpf.Hash), features.HaveMapType(ebpf.LRUHash))
	}},
	{"ring buffer", "wake events", func() error { return features.HaveMapType(ebpf.RingBuf) }},
	{"bounded loops", "TCP options", features.HaveBoundedLoops},
	{"XDP redirect", "passing packets between devices",
		func() error { return features.HaveProgramHelper(ebpf.XDP, asm.FnRedirect) }},
	{"XDP route lookup", "finding the route to the client",
		func() error { return features.HaveProgramHelper(ebpf.XDP, asm.FnFibLookup) }},
}

// gateTries lists features that can only be detected by using them in a temporary network namespace.
var gateTries = []struct {
	name     string
	use      string
	do       string
	required bool
	try      func() error
}{
	{"veth", "the network of pods", "use a kernel with CONFIG_VETH, or: modprobe veth", true, tryVeth},
	{"tcx", "attaching alongside other programs", "boot Linux 6.6 or later", true, tryTCX},
	{"native XDP on veth", "speed between network namespaces", "nothing; the gate works without XDP", false, tryNativeXDP},
	{"LISTEN events", "readiness without probing (tracepoint inet_sock_set_state, network namespace cookie)",
		"nothing; Wangell probes with SYNs instead", false, tryListenEvent},
}

func gate() []Check {
	var checks []Check
	if os.Geteuid() != 0 {
		c := Check{Name: "eBPF", Group: Gate, Required: true, For: "the gate", Do: "run it with sudo"}
		return []Check{c.skipped("needs root")}
	}
	for _, f := range gateFeatures {
		c := Check{Name: f.name, Group: Gate, Required: true, For: f.use, Do: "boot Linux 6.6 or later"}
		checks = append(checks, c.tried("loads", f.have()))
	}
	for _, t := range gateTries {
		c := Check{Name: t.name, Group: Gate, Required: t.required, For: t.use, Do: t.do}
		err := inScratch(t.try)
		c = c.tried("works", err)
		if err != nil && !t.required {
			c.State = Warn
		}
		checks = append(checks, c)
	}
	return append(checks, xdp()...)
}

// xdp shows the XDP mode in use at each external interface, or the one auto would choose.
func xdp() []Check {
	c := Check{
		Name: "XDP", Group: Gate, For: "parking SYNs of sleeping services at little cost",
		Do: "nothing; the gate works without XDP",
	}
	at, err := wangellgate.InspectXDP()
	if err != nil {
		return []Check{c.skipped(err.Error())}
	}
	var checks []Check
	for _, name := range slices.Sorted(maps.Keys(at)) {
		c.Name = "XDP at " + name
		if x := at[name]; x.Mode == wangellgate.XDPOff {
			checks = append(checks, c.warn("off: "+x.Why))
		} else {
			checks = append(checks, c.ok(string(x.Mode)))
		}
	}
	return checks
}

func tryVeth() error {
	_, err := scratchVeth()
	return err
}

// verdict loads a program that only returns a verdict.
func verdict(t ebpf.ProgramType, attach ebpf.AttachType, value int32) (*ebpf.Program, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "wg_doctor", Type: t, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, value), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("load a %s program: %w", t, err)
	}
	return p, nil
}

func tryTCX() error {
	const next = -1 // TCX_NEXT, linux/bpf.h
	prog, err := verdict(ebpf.SchedCLS, ebpf.AttachTCXIngress, next)
	if err != nil {
		return err
	}
	defer prog.Close()
	device, err := scratchVeth()
	if err != nil {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: device, Program: prog, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return err
	}
	return l.Close()
}

func tryNativeXDP() error {
	const pass = 2 // XDP_PASS, linux/bpf.h
	prog, err := verdict(ebpf.XDP, ebpf.AttachXDP, pass)
	if err != nil {
		return err
	}
	defer prog.Close()
	device, err := scratchVeth()
	if err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: device, Flags: link.XDPDriverMode})
	if err != nil {
		return err
	}
	return l.Close()
}
