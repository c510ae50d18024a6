// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// toAddr converts an address to the 128 bits that the programs use; IPv4 becomes ::ffff:a.b.c.d. The words are in
// network byte order in memory.
func toAddr(a netip.Addr) gateAddr {
	b := a.As16()
	var out gateAddr
	for i := range out.W {
		out.W[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return out
}

// fromAddr reverses toAddr; IPv4-mapped addresses become IPv4.
func fromAddr(a gateAddr) netip.Addr {
	var b [16]byte
	for i, w := range a.W {
		binary.NativeEndian.PutUint32(b[4*i:], w)
	}
	return netip.AddrFrom16(b).Unmap()
}

// toBE converts an IPv4 address to network byte order in memory. Any other address becomes 0.
func toBE(a netip.Addr) uint32 {
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

// fromBE reverses toBE.
func fromBE(n uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

// htons converts a port to network byte order in memory.
func htons(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}

// ntohs reverses htons.
func ntohs(p uint16) uint16 { return htons(p) }

func toServiceKey(a netip.AddrPort) gateServiceKey {
	return gateServiceKey{Addr: toAddr(a.Addr()), Port: htons(a.Port())}
}

func fromServiceKey(k gateServiceKey) netip.AddrPort {
	return netip.AddrPortFrom(fromAddr(k.Addr), ntohs(k.Port))
}

// hardwareAddr converts a MAC address to the array that the programs use.
func hardwareAddr(m net.HardwareAddr) (out [6]uint8) {
	copy(out[:], m)
	return out
}
