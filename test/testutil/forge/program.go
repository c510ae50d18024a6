// SPDX-License-Identifier: Apache-2.0

package forge

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// frameLen is the length of a SYN's frame: Ethernet, IPv4 and TCP headers, and an MSS option.
const frameLen = 14 + 20 + 24

// SYN returns the frame of one SYN, from port 1024 of an IPv4 address and with the sequence number 0. from and to are
// MAC addresses.
func SYN(from, to net.HardwareAddr, source netip.Addr, service netip.AddrPort) []byte {
	f := make([]byte, 0, frameLen)
	f = append(append(f, to...), from...)
	f = append(f, 8, 0)
	f = append(f, 0x45, 0, 0, frameLen-14, 0, 1, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0)
	src, dst := source.As4(), service.Addr().As4()
	f = append(append(f, src[:]...), dst[:]...)
	f = binary.BigEndian.AppendUint16(f, 1024)
	f = binary.BigEndian.AppendUint16(f, service.Port())
	f = append(f, 0, 0, 0, 0, 0, 0, 0, 0, 0x60, 2 /* SYN */, 0xfa, 0xf0, 0, 0, 0, 0, 2, 4, 0x05, 0xb4)
	binary.BigEndian.PutUint16(f[24:], ^sum(f[14:34], 0))
	binary.BigEndian.PutUint16(f[50:], ^sum(f[34:], uint32(sum(f[26:34], 0))+unix.IPPROTO_TCP+frameLen-34))
	return f
}

// sum is the ones' complement sum of 16-bit words (RFC 1071).
func sum(b []byte, s uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// Offsets of 16-bit words of a frame.
const (
	atID       = 18 // identification of the IP packet
	atSource   = 28 // lower half of the source address
	atDestHigh = 30 // destination address
	atDestLow  = 32
	atPort     = 34 // source port
	atDestPort = 36
	atSeqHigh  = 38 // sequence number
	atSeqLow   = 40
)

// destination is the data of a service for the program.
type destination struct {
	High, Low, Port uint16 // words of a frame, as they stand
	Sum             uint16 // ones' complement sum of the halves of the address
}

// loadDestinations makes the map from which the program chooses services.
func loadDestinations(services []netip.AddrPort) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "wgl_forge", Type: ebpf.Array, KeySize: 4, ValueSize: 8,
		MaxEntries: uint32(len(services))})
	if err != nil {
		return nil, fmt.Errorf("make a map of services: %w", err)
	}
	for i, s := range services {
		a := s.Addr().As4()
		var port [2]byte
		binary.BigEndian.PutUint16(port[:], s.Port())
		d := destination{High: binary.NativeEndian.Uint16(a[:]), Low: binary.NativeEndian.Uint16(a[2:]),
			Port: binary.NativeEndian.Uint16(port[:])}
		both := uint32(d.High) + uint32(d.Low)
		d.Sum = uint16(both&0xffff + both>>16)
		if err := m.Put(uint32(i), d); err != nil {
			m.Close()
			return nil, fmt.Errorf("write the service %v to a map: %w", s, err)
		}
	}
	return m, nil
}

// load loads the program. The words that vary keep their sums, so checksums stay right: the IP header's by its
// identification, TCP's by the upper half of the sequence number. Words are read and written as they stand, because
// the sum of RFC 1071 does not depend on the byte order.
func load(frame []byte, cfg *Config, device uint32, services *ebpf.Map) (*ebpf.Program, error) {
	word := func(at int) int32 { return int32(binary.NativeEndian.Uint16(frame[at:])) }
	var be [2]byte
	binary.BigEndian.PutUint16(be[:], uint16(1<<min(16, 32-cfg.Sources.Bits())-1))
	hosts := int32(binary.NativeEndian.Uint16(be[:]))
	binary.BigEndian.PutUint16(be[:], 1024)
	unprivileged := int32(binary.NativeEndian.Uint16(be[:]))
	fold := func(r asm.Register) asm.Instructions {
		var i asm.Instructions
		for range 2 {
			i = append(i, asm.Mov.Reg(asm.R0, r), asm.RSh.Imm(asm.R0, 16), asm.And.Imm(r, 0xffff), asm.Add.Reg(r, asm.R0))
		}
		return i
	}
	i := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetPrandomU32.Call(),
		asm.Mov.Reg(asm.R7, asm.R0), // source address and port
		asm.FnGetPrandomU32.Call(),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.And.Imm(asm.R8, 0xffff), // lower half of the sequence number
		asm.RSh.Imm(asm.R0, 16),     // service
		asm.Mul.Imm(asm.R0, int32(len(cfg.Services))),
		asm.RSh.Imm(asm.R0, 16),
		asm.StoreMem(asm.RFP, -4, asm.R0, asm.Word),
		asm.LoadMapPtr(asm.R1, services.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(asm.R5, asm.R0),
		asm.LoadMem(asm.R9, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Add.Imm(asm.R2, frameLen),
		asm.JGT.Reg(asm.R2, asm.R3, "end"),
	}
	// The kernel reuses frames with their former content.
	at := 0
	for ; at+4 <= frameLen; at += 4 {
		i = append(i, asm.StoreImm(asm.R9, int16(at), int64(int32(binary.NativeEndian.Uint32(frame[at:]))), asm.Word))
	}
	for ; at < frameLen; at++ {
		i = append(i, asm.StoreImm(asm.R9, int16(at), int64(frame[at]), asm.Byte))
	}
	i = append(i,
		// Source address.
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.And.Imm(asm.R1, hosts),
		asm.Or.Imm(asm.R1, word(atSource)),
		asm.StoreMem(asm.R9, atSource, asm.R1, asm.Half),
		// Destination address and port.
		asm.LoadMem(asm.R2, asm.R5, 0, asm.Half),
		asm.StoreMem(asm.R9, atDestHigh, asm.R2, asm.Half),
		asm.LoadMem(asm.R2, asm.R5, 2, asm.Half),
		asm.StoreMem(asm.R9, atDestLow, asm.R2, asm.Half),
		asm.LoadMem(asm.R3, asm.R5, 4, asm.Half),
		asm.StoreMem(asm.R9, atDestPort, asm.R3, asm.Half),
		asm.LoadMem(asm.R2, asm.R5, 6, asm.Half),
		// The identification keeps the sum, given the addresses.
		asm.Mov.Imm(asm.R4, word(atID)+word(atSource)+word(atDestHigh)+word(atDestLow)+2*0xffff),
		asm.Sub.Reg(asm.R4, asm.R1),
		asm.Sub.Reg(asm.R4, asm.R2),
	)
	i = append(i, fold(asm.R4)...)
	i = append(i,
		asm.StoreMem(asm.R9, atID, asm.R4, asm.Half),
		// Port.
		asm.RSh.Imm(asm.R7, 16),
		asm.And.Imm(asm.R7, 0xffff),
		asm.Or.Imm(asm.R7, unprivileged),
		asm.StoreMem(asm.R9, atPort, asm.R7, asm.Half),
		// The upper half of the sequence number keeps the sum.
		asm.StoreMem(asm.R9, atSeqLow, asm.R8, asm.Half),
		asm.Mov.Imm(asm.R4, word(atSource)+word(atDestHigh)+word(atDestLow)+word(atDestPort)+word(atPort)+word(atSeqLow)+
			word(atSeqHigh)+5*0xffff),
		asm.Sub.Reg(asm.R4, asm.R1),
		asm.Sub.Reg(asm.R4, asm.R2),
		asm.Sub.Reg(asm.R4, asm.R3),
		asm.Sub.Reg(asm.R4, asm.R7),
		asm.Sub.Reg(asm.R4, asm.R8),
	)
	i = append(i, fold(asm.R4)...)
	i = append(i, asm.StoreMem(asm.R9, atSeqHigh, asm.R4, asm.Half))
	if cfg.Arrive {
		i = append(i, asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */))
	} else {
		i = append(i, asm.Mov.Imm(asm.R1, int32(device)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call())
	}
	i = append(i,
		asm.Return(),
		asm.Mov.Imm(asm.R0, 1 /* XDP_DROP */).WithSymbol("end"),
		asm.Return(),
	)
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: "wgl_forge", Type: ebpf.XDP, License: "GPL", Instructions: i})
}
