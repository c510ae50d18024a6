// SPDX-License-Identifier: Apache-2.0

package forge

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Absorb drops packets that arrive at a device, in the calling thread's network namespace, for the sources of a
// flood: answers to forged SYNs, which would leave the machine on a real network, end here. It lasts until closed.
func Absorb(device string, sources netip.Prefix) (io.Closer, error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("absorb answers to forged SYNs: device %s: %w", device, err)
	}
	if !sources.IsValid() || !sources.Addr().Is4() {
		return nil, fmt.Errorf("absorb answers to forged SYNs at %s: sources %v: want IPv4", device, sources)
	}
	network := sources.Masked().Addr().As4()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "wgl_absorb", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadAbs(12, asm.Half),
			asm.JNE.Imm(asm.R0, unix.ETH_P_IP, "next"),
			asm.LoadAbs(30, asm.Word), // destination
			asm.RSh.Imm(asm.R0, int32(32-sources.Bits())),
			asm.JNE.Imm32(asm.R0, int32(binary.BigEndian.Uint32(network[:])>>(32-sources.Bits())), "next"),
			asm.Mov.Imm(asm.R0, 2 /* TCX_DROP */),
			asm.Return(),
			asm.Mov.Imm(asm.R0, -1 /* TCX_NEXT */).WithSymbol("next"),
			asm.Return(),
		}})
	if err != nil {
		return nil, fmt.Errorf("absorb answers to forged SYNs: load the program: %w", err)
	}
	defer program.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: dev.Index, Program: program, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil, fmt.Errorf("absorb answers to forged SYNs at %s: attach the program: %w", device, err)
	}
	return l, nil
}
