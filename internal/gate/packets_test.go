// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"wangell.loutres.me/test/testutil/netlab"
)

// segment is a TCP segment to be sent. Zero fields become what a host would send.
type segment struct {
	from, to  netip.AddrPort
	flags     string // of S, A, F, R, P
	seq, ack  uint32
	window    uint16 // 0 means 64,240
	payload   []byte
	options   []layers.TCPOption
	ipOptions []layers.IPv4Option
	src, dst  net.HardwareAddr
	padding   int  // bytes after the packet
	partial   bool // the checksum is that of the pseudo header
}

// wscale is a window scale option (RFC 7323).
func wscale(n byte) layers.TCPOption {
	return layers.TCPOption{OptionType: layers.TCPOptionKindWindowScale, OptionLength: 3, OptionData: []byte{n}}
}

// synOptions are those of a Linux SYN.
var synOptions = []layers.TCPOption{
	{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}},
	{OptionType: layers.TCPOptionKindSACKPermitted, OptionLength: 2},
	{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: []byte{1, 2, 3, 4, 0, 0, 0, 0}},
	{OptionType: layers.TCPOptionKindNop},
	wscale(7),
}

func serialize(l ...gopacket.SerializableLayer) []byte {
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		l...); err != nil {
		panic(err)
	}
	return bytes.Clone(b.Bytes())
}

func ip4(from, to netip.Addr, protocol layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Id: 0x4711, Protocol: protocol, Flags: layers.IPv4DontFragment,
		SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
}

// frame builds the segment's Ethernet frame.
func (s segment) frame() []byte {
	ip := ip4(s.from.Addr(), s.to.Addr(), layers.IPProtocolTCP)
	ip.Options = s.ipOptions
	has := func(f string) bool { return strings.Contains(s.flags, f) }
	tcp := &layers.TCP{SrcPort: layers.TCPPort(s.from.Port()), DstPort: layers.TCPPort(s.to.Port()), Seq: s.seq,
		Ack: s.ack, Window: s.window,
		SYN: has("S"), ACK: has("A"), FIN: has("F"), RST: has("R"), PSH: has("P"), Options: s.options}
	if s.window == 0 {
		tcp.Window = 64240
	}
	if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
		panic(err)
	}
	f := serialize(&layers.Ethernet{SrcMAC: s.src, DstMAC: s.dst, EthernetType: layers.EthernetTypeIPv4}, ip, tcp,
		gopacket.Payload(s.payload))
	if s.partial {
		l4 := ethernetHeader + int(f[14]&0xf)*4
		binary.BigEndian.PutUint16(f[l4+16:], fold16(pseudoSum(f[26:30], f[30:34], len(f)-l4)))
	}
	return append(f, make([]byte, s.padding)...)
}

// fromClient is a segment from client to vip, as it arrives at the node's interface.
func (w *world) fromClient(flags string, seq, ack uint32, payload ...byte) segment {
	return segment{from: client, to: vip, flags: flags, seq: seq, ack: ack, payload: payload, src: clientMAC,
		dst: w.nic.Attrs().HardwareAddr}
}

// fromPod is a segment from a pod to client.
func (w *world) fromPod(i int, flags string, seq, ack uint32, payload ...byte) segment {
	return segment{from: podAt[i], to: client, flags: flags, seq: seq, ack: ack, payload: payload, src: podMAC[i],
		dst: w.podLink[i].Attrs().HardwareAddr}
}

// syn is client's SYN with a sequence number.
func (w *world) syn(seq uint32) segment {
	s := w.fromClient("S", seq, 0)
	s.options = synOptions
	return s
}

// icmpFrame is an ICMP packet from client to vip's address.
func (w *world) icmpFrame(typ, code uint8, rest uint32, body []byte) []byte {
	h := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code), Id: uint16(rest >> 16), Seq: uint16(rest)}
	return serialize(&layers.Ethernet{SrcMAC: clientMAC, DstMAC: w.nic.Attrs().HardwareAddr,
		EthernetType: layers.EthernetTypeIPv4},
		ip4(client.Addr(), vip.Addr(), layers.IPProtocolICMPv4), h, gopacket.Payload(body))
}

// fragNeeded is a router's ICMP error about a packet that exceeds an MTU.
func (w *world) fragNeeded(about segment, mtu uint16) []byte {
	return w.icmpFrame(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodeFragmentationNeeded, uint32(mtu),
		about.frame()[ethernetHeader:][:28])
}

var broadcast = net.HardwareAddr{255, 255, 255, 255, 255, 255}

// arpFrame is an ARP frame about target.
func arpFrame(op uint16, sender, target netip.Addr) []byte {
	f := serialize(&layers.Ethernet{SrcMAC: clientMAC, DstMAC: broadcast, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6,
			ProtAddressSize: 4, Operation: op,
			SourceHwAddress: clientMAC, SourceProtAddress: sender.AsSlice(), DstHwAddress: make([]byte, 6),
			DstProtAddress: target.AsSlice()})
	return append(f, make([]byte, 60-len(f))...)
}

func dump(frame []byte) string {
	return gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).String()
}

// decode parses a resulting frame and verifies its checksums.
func decode(t testing.TB, frame []byte) gopacket.Packet {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatalf("resulting frame: %v\n%x", e.Error(), frame)
	}
	if tcp, ok := p.TransportLayer().(*layers.TCP); ok {
		if err := tcp.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
			t.Fatal(err)
		}
	}
	err, wrong := p.VerifyChecksums()
	if err != nil || len(wrong) > 0 {
		t.Errorf("checksums: %v %+v of\n%v", err, wrong, p.String())
	}
	return p
}

func tcpOf(t testing.TB, p gopacket.Packet) (*layers.IPv4, *layers.TCP) {
	t.Helper()
	ip, _ := p.NetworkLayer().(*layers.IPv4)
	tcp, _ := p.TransportLayer().(*layers.TCP)
	if ip == nil || tcp == nil {
		t.Fatalf("not TCP over IPv4:\n%v", p.String())
	}
	return ip, tcp
}

// rewritten checks that out differs from in only in MAC addresses, source, destination and checksums, and that the
// checksums are right.
func rewritten(t testing.TB, in, out []byte, src, dst net.HardwareAddr, from, to netip.AddrPort) {
	t.Helper()
	decode(t, out)
	want := bytes.Clone(in)
	copy(want[0:], dst)
	copy(want[6:], src)
	l4 := ethernetHeader + int(in[14]&0xf)*4
	copy(want[26:], from.Addr().AsSlice())
	copy(want[30:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(want[l4:], from.Port())
	binary.BigEndian.PutUint16(want[l4+2:], to.Port())
	copy(want[24:26], out[24:26])            // decode has verified
	copy(want[l4+16:l4+18], out[l4+16:][:2]) // the checksums
	if !bytes.Equal(out, want) {
		t.Errorf("became\n%x, want\n%x", out, want)
	}
}

// toPod checks that out is in as sent to a pod.
func (w *world) toPod(i int, in, out []byte) {
	w.Helper()
	rewritten(w, in, out, w.podLink[i].Attrs().HardwareAddr, podMAC[i], sourceOf(in), podAt[i])
}

// toClient checks that out is a pod's frame in as sent to the client.
func (w *world) toClient(in, out []byte) {
	w.Helper()
	rewritten(w, in, out, w.nic.Attrs().HardwareAddr, clientMAC, vip, destinationOf(in))
}

func sourceOf(f []byte) netip.AddrPort {
	l4 := ethernetHeader + int(f[14]&0xf)*4
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(f[26:30])), binary.BigEndian.Uint16(f[l4:]))
}

func destinationOf(f []byte) netip.AddrPort {
	l4 := ethernetHeader + int(f[14]&0xf)*4
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(f[30:34])), binary.BigEndian.Uint16(f[l4+2:]))
}

// podOf returns the pod to which a frame was sent.
func podOf(t testing.TB, out []byte) int {
	t.Helper()
	to := destinationOf(out)
	for i, a := range podAt {
		if a == to {
			return i
		}
	}
	t.Fatalf("sent to %v, which is no pod", to)
	return 0
}

// resetTo checks that out is a RST that answers a segment and that the segment's sender accepts.
func resetTo(t testing.TB, s segment, out []byte) {
	t.Helper()
	p := decode(t, out)
	ip, tcp := tcpOf(t, p)
	eth := p.LinkLayer().(*layers.Ethernet)
	if !bytes.Equal(eth.DstMAC, s.src) || !bytes.Equal(eth.SrcMAC, s.dst) {
		t.Errorf("RST from %v to %v, want the reverse of %v to %v", eth.SrcMAC, eth.DstMAC, s.src, s.dst)
	}
	if netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip.SrcIP)), uint16(tcp.SrcPort)) != s.to ||
		netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip.DstIP)), uint16(tcp.DstPort)) != s.from {
		t.Errorf("RST from %v:%d to %v:%d, want from %v to %v", ip.SrcIP, tcp.SrcPort, ip.DstIP, tcp.DstPort, s.to, s.from)
	}
	if !tcp.RST || tcp.SYN || tcp.FIN || len(out) != 54 || ip.TTL == 0 || len(ip.Options) > 0 {
		t.Errorf("not a plain RST:\n%v", p.String())
	}
	if strings.Contains(s.flags, "A") {
		if tcp.ACK || tcp.Seq != s.ack {
			t.Errorf("RST with ACK %v, sequence number %d; want %d, the acknowledged one (RFC 9293, 3.10.7.1)", tcp.ACK, tcp.Seq,
				s.ack)
		}
		return
	}
	want := s.seq + uint32(len(s.payload))
	for _, f := range []string{"S", "F"} {
		if strings.Contains(s.flags, f) {
			want++
		}
	}
	if !tcp.ACK || tcp.Ack != want || tcp.Seq != 0 {
		t.Errorf("RST with ACK %v of %d, sequence number %d; want ACK of %d, number 0", tcp.ACK, tcp.Ack, tcp.Seq, want)
	}
}

// roundTrips captures what the clients of some services send and receive at their device eth0, until the function that
// it returns is called. That returns how often the client of each service waited for an answer before it could send
// its first byte. Unlike the time that this took, it depends neither on the speed of the machine nor on what got lost.
func roundTrips(t *testing.T, ns string) (stop func() map[netip.AddrPort]int) {
	t.Helper()
	at, err := netlab.Existing("/run/netns/" + ns)
	if err != nil {
		t.Fatal(err)
	}
	c, err := at.Capture("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return func() map[netip.AddrPort]int {
		t.Helper()
		packets, err := c.Close()
		if err != nil {
			t.Fatal(err)
		}
		return countRoundTrips(packets)
	}
}

// countRoundTrips counts the answers of each service until its client sends its first byte. Packets in a row count
// once, and repeated packets do not count.
func countRoundTrips(packets []netlab.Packet) map[netip.AddrPort]int {
	type segment struct {
		out, syn, ack, rst bool
		seq, acked         uint32
	}
	type dialogue struct {
		seen  map[segment]bool
		asked bool // the last packet was the client's
		over  bool
	}
	trips, all := map[netip.AddrPort]int{}, map[netip.AddrPort]*dialogue{}
	for _, p := range packets {
		ip, tcp, ok := p.TCP()
		if !ok {
			continue
		}
		service := tcpAddr(ip.SrcIP, tcp.SrcPort)
		if p.Outgoing {
			service = tcpAddr(ip.DstIP, tcp.DstPort)
		}
		d := all[service]
		if d == nil {
			d = &dialogue{seen: map[segment]bool{}}
			all[service] = d
		}
		s := segment{p.Outgoing, tcp.SYN, tcp.ACK, tcp.RST, tcp.Seq, tcp.Ack}
		d.over = d.over || p.Outgoing && len(tcp.Payload) > 0
		if d.over || d.seen[s] {
			continue
		}
		d.seen[s] = true
		if d.asked && !p.Outgoing {
			trips[service]++
		}
		d.asked = p.Outgoing
	}
	return trips
}

func tcpAddr(ip []byte, port layers.TCPPort) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port))
}
