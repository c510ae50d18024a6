// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Flags of a TCP header, byte 13 (RFC 9293, 3.1).
const (
	tcpRST = 0x04
	tcpACK = 0x10
)

const ethernetHeader = 14 // length of an Ethernet header, bytes

// sum16 adds b to a ones' complement sum (RFC 1071).
func sum16(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// fold16 folds a ones' complement sum into 16 bits.
func fold16(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// pseudoSum is the sum of the pseudo header of a TCP segment over IPv4 (RFC 9293, 3.1).
func pseudoSum(src, dst []byte, length int) uint32 {
	return sum16(sum16(0, src), dst) + 6 + uint32(length)
}

// tcpSumState is the result of checking a TCP checksum.
type tcpSumState int

const (
	sumWrong   tcpSumState = iota // it does not match the segment
	sumRight                      // it matches the segment
	sumPartial                    // it covers the pseudo header only; a device is to complete it
)

// tcpSum checks the TCP checksum of an IPv4 packet with complete headers.
func tcpSum(ip []byte) tcpSumState {
	tcp := ip[int(ip[0]&0xf)*4:]
	pseudo := pseudoSum(ip[12:16], ip[16:20], len(tcp))
	if fold16(sum16(pseudo, tcp)) == 0xffff {
		return sumRight
	}
	if binary.BigEndian.Uint16(tcp[16:]) == fold16(pseudo) {
		return sumPartial
	}
	return sumWrong
}

// setTCPSum writes the TCP checksum of an IPv4 packet with complete headers.
func setTCPSum(ip []byte) {
	tcp := ip[int(ip[0]&0xf)*4:]
	tcp[16], tcp[17] = 0, 0
	binary.BigEndian.PutUint16(tcp[16:], ^fold16(sum16(pseudoSum(ip[12:16], ip[16:20], len(tcp)), tcp)))
}

// tcpHeaders describes a TCP segment without payload over IPv4.
type tcpHeaders struct {
	src, dst netip.AddrPort // IPv4
	seq, ack uint32
	flags    byte
	window   uint16
	options  []byte // length is a multiple of 4
	tos, ttl byte
}

// packet builds the IPv4 packet, with DF set and right checksums.
func (h tcpHeaders) packet() []byte {
	p := make([]byte, 40+len(h.options))
	p[0], p[1], p[6], p[8], p[9] = 0x45, h.tos, 0x40, h.ttl, 6
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], h.src.Addr().AsSlice())
	copy(p[16:], h.dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[10:], ^fold16(sum16(0, p[:20])))
	tcp := p[20:]
	binary.BigEndian.PutUint16(tcp, h.src.Port())
	binary.BigEndian.PutUint16(tcp[2:], h.dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], h.seq)
	binary.BigEndian.PutUint32(tcp[8:], h.ack)
	tcp[12], tcp[13] = byte(len(tcp)/4)<<4, h.flags
	binary.BigEndian.PutUint16(tcp[14:], h.window)
	copy(tcp[20:], h.options)
	setTCPSum(p)
	return p
}

// resetFor builds the IPv4 packet with the RST that answers a SYN (RFC 9293, 3.10.7.1). It acknowledges the whole
// sequence space of the SYN, or the client would ignore it.
func resetFor(syn []byte) []byte {
	tcp := syn[int(syn[0]&0xf)*4:]
	payload := len(tcp) - int(tcp[12]>>4)*4
	return tcpHeaders{
		src:   addrPortAt(syn[16:20], tcp[2:4]),
		dst:   addrPortAt(syn[12:16], tcp[0:2]),
		ack:   binary.BigEndian.Uint32(tcp[4:]) + 1 + uint32(payload),
		flags: tcpRST | tcpACK,
		ttl:   64,
	}.packet()
}

// addrPortAt reads an IPv4 address and a port from a packet.
func addrPortAt(addr, port []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), binary.BigEndian.Uint16(port))
}

// synOf builds the IPv4 packet with a SYN that the programs have backed up; nil if the backup is invalid, such as when
// it is read while being written.
func synOf(b *gateSynBackup, flow gateFlowKey) []byte {
	n := int(b.OptionsLen)
	client, service := fromAddr(flow.Client), fromAddr(flow.Service)
	if n > len(b.Options) || n%4 != 0 || !client.Is4() || !service.Is4() {
		return nil
	}
	return tcpHeaders{
		src:     netip.AddrPortFrom(client, ntohs(flow.ClientPort)),
		dst:     netip.AddrPortFrom(service, ntohs(flow.ServicePort)),
		seq:     b.Isn,
		flags:   b.Flags,
		window:  ntohs(b.Window),
		options: b.Options[:n],
		tos:     b.Tos,
		ttl:     b.Ttl,
	}.packet()
}

// frame puts an Ethernet header before an IPv4 packet.
func frame(to, from, packet []byte) []byte {
	f := make([]byte, 0, ethernetHeader+len(packet))
	f = append(f, to...)
	f = append(f, from...)
	f = append(f, 0x08, 0x00)
	return append(f, packet...)
}

// arpAnnouncement builds the frame of an ARP announcement (RFC 5227, 2.3): a request for the sender's own address.
func arpAnnouncement(mac []byte, vip netip.Addr) []byte {
	f := make([]byte, 0, 42)
	f = append(f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	f = append(f, mac...)
	f = binary.BigEndian.AppendUint16(f, 0x0806) // ARP
	f = append(f, 0, 1, 8, 0, 6, 4, 0, 1)        // Ethernet, IPv4, lengths of addresses, request
	f = append(f, mac...)
	f = append(f, vip.AsSlice()...)
	f = append(f, make([]byte, 6)...)
	return append(f, vip.AsSlice()...)
}

// injector sends frames through this node's devices.
type injector struct {
	fd    int // packet socket
	outer int // interface index of OuterDevice: frames sent there arrive on InnerDevice
}

func newInjector(outer int) (*injector, error) {
	// Protocol 0: the socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w: this needs CAP_NET_RAW", err)
	}
	// Without a queueing discipline, frames stay in order and are not delayed.
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up a packet socket: %w", err)
	}
	return &injector{fd: fd, outer: outer}, nil
}

// send sends an Ethernet frame through a device.
func (i *injector) send(ifindex int, frame []byte) error {
	to := &unix.SockaddrLinklayer{Ifindex: ifindex, Halen: 6, Protocol: binary.NativeEndian.Uint16(frame[12:])}
	copy(to.Addr[:], frame[:6])
	return unix.Sendto(i.fd, frame, 0, to)
}

func (i *injector) close() error { return unix.Close(i.fd) }
