// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"net/netip"
)

// toAddr converts an address to the gate's 128 bits; IPv4 becomes ::ffff:a.b.c.d. The words hold
// network byte order, so they are read as the machine reads memory.
func toAddr(a netip.Addr) gateAddr {
	b := a.As16()
	var out gateAddr
	for i := range out.W {
		out.W[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return out
}

// fromAddr is the reverse of toAddr; IPv4-mapped addresses become IPv4.
func fromAddr(a gateAddr) netip.Addr {
	var b [16]byte
	for i, w := range a.W {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	return netip.AddrFrom16(b).Unmap()
}

// htons converts a port to network byte order as it lies in memory.
func htons(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}

// ntohs is its own reverse.
func ntohs(p uint16) uint16 { return htons(p) }

func toServiceKey(a netip.AddrPort) gateServiceKey {
	return gateServiceKey{Addr: toAddr(a.Addr()), Port: htons(a.Port())}
}

func fromServiceKey(k gateServiceKey) netip.AddrPort {
	return netip.AddrPortFrom(fromAddr(k.Addr), ntohs(k.Port))
}
