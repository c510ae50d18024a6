// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// fixture is a packet at a program. Each is a test and a benchmark.
type fixture struct {
	name    string
	on      program
	world   func(w *world) // prepares the world; nil: vip is warm, with pod 1
	frame   func(w *world) []byte
	verdict uint32
	check   func(w *world, in, out []byte) // nil: the frame is unchanged
	counts  map[string]uint64              // nonzero counters
}

// connected establishes a flow from client to pod 1. The client's next sequence number is 1001, the pod's 5001.
func connected(w *world) {
	w.warm(vip, 1)
	w.connect(1000, 5000)
}

// connect runs the handshake of client with pod 1.
func (w *world) connect(isn, podISN uint32) {
	w.Helper()
	w.wantRun(onNIC, w.syn(isn).frame(), tcxRedirect)
	synack := w.fromPod(1, "SA", podISN, isn+1)
	synack.options = synOptions
	w.wantRun(onPod1, synack.frame(), tcxRedirect)
	w.wantRun(onNIC, w.fromClient("A", isn+1, podISN+1).frame(), tcxRedirect)
}

func cold(w *world) { w.service(vip, 100, 100) }

// with changes a frame.
func with(f func(w *world) []byte, change func(b []byte)) func(w *world) []byte {
	return func(w *world) []byte {
		b := f(w)
		change(b)
		return b
	}
}

// set16 sets 16 bits at an offset.
func set16(at int, v uint16) func(b []byte) {
	return func(b []byte) { binary.BigEndian.PutUint16(b[at:], v) }
}

func synFrame(w *world) []byte { return w.syn(1000).frame() }

func dataFrame(w *world) []byte { return w.fromClient("PA", 1001, 5001, []byte("hello")...).frame() }

// segmentFrame makes a fixture's frame from a segment.
func segmentFrame(f func(w *world) segment) func(w *world) []byte {
	return func(w *world) []byte { return f(w).frame() }
}

func toPod1(w *world, in, out []byte) { w.toPod(1, in, out) }

// reset checks the RST to a segment.
func reset(f func(w *world) segment) func(w *world, in, out []byte) {
	return func(w *world, _, out []byte) { resetTo(w, f(w), out) }
}

// echoed checks the reply to a ping.
func echoed(w *world, in, out []byte) {
	p := decode(w, out)
	ip := p.NetworkLayer().(*layers.IPv4)
	icmp := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
	if icmp.TypeCode.Type() != layers.ICMPv4TypeEchoReply || !ip.SrcIP.Equal(vip.Addr().AsSlice()) ||
		!ip.DstIP.Equal(client.Addr().AsSlice()) {
		w.Errorf("not an echo reply:\n%v", p.String())
	}
	if !bytes.Equal(out[:6], in[6:12]) || !bytes.Equal(out[6:12], in[:6]) || !bytes.Equal(out[38:], in[38:]) {
		w.Errorf("the reply's addresses or data differ:\n%v", p.String())
	}
}

// arpAnswered checks the reply to arpFrame.
func arpAnswered(w *world, in, out []byte) {
	var want layers.ARP
	if err := want.DecodeFromBytes(in[14:], gopacket.NilDecodeFeedback); err != nil {
		w.Fatal(err)
	}
	got := decode(w, out).Layer(layers.LayerTypeARP).(*layers.ARP)
	ours := w.nic.Attrs().HardwareAddr
	if got.Operation != layers.ARPReply || !bytes.Equal(got.SourceHwAddress, ours) ||
		!bytes.Equal(got.SourceProtAddress, want.DstProtAddress) ||
		!bytes.Equal(got.DstHwAddress, want.SourceHwAddress) || !bytes.Equal(got.DstProtAddress, want.SourceProtAddress) ||
		!bytes.Equal(out[:6], want.SourceHwAddress) || !bytes.Equal(out[6:12], ours) || len(out) != len(in) {
		w.Errorf("not the right reply: %+v", got)
	}
}

// icmpCarried checks that an ICMP error about a packet from vip was forwarded to pod 1, translated.
func icmpCarried(w *world, in, out []byte) {
	p := decode(w, out)
	ip := p.NetworkLayer().(*layers.IPv4)
	if !ip.DstIP.Equal(podAt[1].Addr().AsSlice()) || !ip.SrcIP.Equal(client.Addr().AsSlice()) ||
		!bytes.Equal(out[:6], podMAC[1]) {
		w.Errorf("not sent to the pod:\n%v", p.String())
	}
	inner := out[42:]
	var about layers.IPv4
	if err := about.DecodeFromBytes(inner, gopacket.NilDecodeFeedback); err != nil {
		w.Fatal(err)
	}
	if !about.SrcIP.Equal(podAt[1].Addr().AsSlice()) || fold16(sum16(0, inner[:20])) != 0xffff ||
		binary.BigEndian.Uint16(inner[20:]) != podAt[1].Port() {
		w.Errorf("the quoted packet is not the pod's: %+v", about)
	}
	if !bytes.Equal(out[34:36], in[34:36]) || !bytes.Equal(out[38:42], in[38:42]) || !bytes.Equal(inner[22:], in[64:]) {
		w.Error("more than the address and port has changed")
	}
}

var router = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}} // router alert

func toForeign(w *world) segment {
	s := w.syn(1)
	s.to = foreign
	return s
}

func toOtherPort(w *world) segment {
	s := w.syn(1000)
	s.to = netip.AddrPortFrom(vip.Addr(), 81)
	return s
}

func strayData(w *world) segment { return w.fromClient("PA", 7, 8, []byte("stray")...) }

func strayFIN(w *world) segment { return w.fromClient("F", 7, 0, []byte("stray")...) }

func synWithData(w *world) segment {
	s := toOtherPort(w)
	s.payload = []byte("early")
	return s
}

// udp is a datagram to vip.
func udp(w *world) []byte {
	ip := ip4(client.Addr(), vip.Addr(), layers.IPProtocolUDP)
	u := &layers.UDP{SrcPort: 1, DstPort: 80}
	_ = u.SetNetworkLayerForChecksum(ip)
	return serialize(&layers.Ethernet{SrcMAC: clientMAC, DstMAC: w.nic.Attrs().HardwareAddr,
		EthernetType: layers.EthernetTypeIPv4}, ip, u, gopacket.Payload("hi"))
}

func sctp(w *world) []byte {
	return serialize(&layers.Ethernet{SrcMAC: clientMAC, DstMAC: w.nic.Attrs().HardwareAddr,
		EthernetType: layers.EthernetTypeIPv4},
		ip4(client.Addr(), vip.Addr(), layers.IPProtocolSCTP), gopacket.Payload(make([]byte, 12)))
}

func ipv6(w *world) []byte {
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: net.ParseIP("fd00::1"),
		DstIP: net.ParseIP("::ffff:10.46.100.5")}
	tcp := &layers.TCP{SrcPort: 1, DstPort: 80, SYN: true}
	_ = tcp.SetNetworkLayerForChecksum(ip)
	return serialize(&layers.Ethernet{SrcMAC: clientMAC, DstMAC: w.nic.Attrs().HardwareAddr,
		EthernetType: layers.EthernetTypeIPv6}, ip, tcp)
}

func vlan(w *world) []byte {
	f := synFrame(w)
	return append(append(bytes.Clone(f[:12]), 0x81, 0, 0, 5), f[12:]...)
}

func ping(w *world) []byte { return w.icmpFrame(8, 0, 0x12340001, []byte("how are you")) }

// toVIP2 changes the destination to an address in the service range without a service.
func toVIP2(b []byte) {
	b[33] = 77
	b[24], b[25] = 0, 0
	binary.BigEndian.PutUint16(b[24:], ^fold16(sum16(0, b[14:34])))
}

func arpFor(target netip.Addr, op uint16, change func(b []byte)) func(w *world) []byte {
	return func(*world) []byte {
		f := arpFrame(op, client.Addr(), target)
		if change != nil {
			change(f)
		}
		return f
	}
}

// podData is a segment of pod 1 in the flow of connected.
func podData(w *world) segment { return w.fromPod(1, "PA", 5001, 1001, []byte("hello, you")...) }

var fixtures = []fixture{
	// A warm service.
	{name: "syn to a pod", on: onNIC, frame: synFrame, verdict: tcxRedirect, check: toPod1},
	{name: "syn of this node to a pod", on: onLocal, frame: synFrame, verdict: tcxRedirect, check: toPod1},
	{name: "syn of another pod to a pod", on: onPod2, frame: synFrame, verdict: tcxRedirect, check: toPod1},
	{name: "syn passes xdp", on: onXDP, frame: synFrame, verdict: xdpPass},
	{name: "syn with ecn", on: onNIC, frame: with(synFrame, func(b []byte) { b[47] |= 0xc0; setTCPSum(b[14:]) }),
		verdict: tcxRedirect, check: toPod1},
	{name: "syn with ip options", on: onNIC,
		frame:   segmentFrame(func(w *world) segment { s := w.syn(1000); s.ipOptions = router; return s }),
		verdict: tcxRedirect, check: toPod1},
	{name: "syn with data (tcp fast open)", on: onNIC,
		frame:   segmentFrame(func(w *world) segment { s := w.syn(1000); s.payload = []byte("GET /"); return s }),
		verdict: tcxRedirect, check: toPod1},
	{name: "syn with padding", on: onNIC,
		frame:   func(w *world) []byte { s := w.fromClient("S", 1000, 0); s.padding = 6; return s.frame() },
		verdict: tcxRedirect, check: toPod1},
	{name: "data to a pod", on: onNIC, world: connected, frame: dataFrame, verdict: tcxRedirect, check: toPod1},
	{name: "data passes xdp", on: onXDP, world: connected, frame: dataFrame, verdict: xdpPass},
	{name: "long data to a pod", on: onNIC, world: connected,
		frame:   segmentFrame(func(w *world) segment { return w.fromClient("A", 1001, 5001, make([]byte, 1448)...) }),
		verdict: tcxRedirect, check: toPod1},
	{name: "data of an odd length with ip options", on: onNIC, world: connected,
		frame: segmentFrame(func(w *world) segment {
			s := w.fromClient("A", 1001, 5001, 1, 2, 3)
			s.ipOptions = router
			return s
		}), verdict: tcxRedirect, check: toPod1},
	{name: "data from a pod", on: onPod1, world: connected, frame: segmentFrame(podData), verdict: tcxRedirect,
		check: (*world).toClient},
	{name: "data of this node to a pod", on: onLocal, world: connected, frame: dataFrame, verdict: tcxRedirect,
		check: toPod1},

	{name: "data of a pod with another's address", on: onPod3, world: func(w *world) {
		w.warm(vip, 1)
		w.wantRun(onPod2, synFrame(w), tcxRedirect)
		w.wantRun(onPod1, w.fromPod(1, "SA", 5000, 1001).frame(), tcxRedirect)
		w.wantRun(onPod2, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
	}, frame: dataFrame, verdict: tcxNext},

	// A cold service.
	{name: "syn parked by xdp", on: onXDP, world: cold, frame: synFrame, verdict: xdpDrop},
	{name: "syn parked by nic", on: onNIC, world: cold, frame: synFrame, verdict: tcxDrop},
	{name: "syn parked by local", on: onLocal, world: cold, frame: synFrame, verdict: tcxDrop},
	{name: "syn to another mac passes xdp", on: onXDP, world: cold, frame: with(synFrame, func(b []byte) { b[5] ^= 1 }),
		verdict: xdpPass},
	{name: "syn too long to be parked", on: onXDP, world: cold,
		frame:   segmentFrame(func(w *world) segment { s := w.syn(1); s.payload = make([]byte, 1500); return s }),
		verdict: xdpDrop, counts: map[string]uint64{"too_long": 1}},

	// Segments of no flow.
	{name: "syn to a port without service", on: onNIC, frame: segmentFrame(toOtherPort), verdict: tcxRedirect,
		check: reset(toOtherPort), counts: map[string]uint64{"no_service": 1}},
	{name: "syn of this node to a port without service", on: onLocal, frame: segmentFrame(toOtherPort),
		verdict: tcxRedirect, check: reset(toOtherPort), counts: map[string]uint64{"no_service": 1}},
	{name: "syn with data to a port without service", on: onNIC, frame: segmentFrame(synWithData), verdict: tcxRedirect,
		check: reset(synWithData), counts: map[string]uint64{"no_service": 1}},
	{name: "stray data", on: onNIC, frame: segmentFrame(strayData), verdict: tcxRedirect, check: reset(strayData),
		counts: map[string]uint64{"stray": 1}},
	{name: "stray fin without ack", on: onNIC, frame: segmentFrame(strayFIN), verdict: tcxRedirect, check: reset(strayFIN),
		counts: map[string]uint64{"stray": 1}},
	{name: "stray data to a cold service", on: onNIC, world: cold, frame: segmentFrame(strayData), verdict: tcxRedirect,
		check: reset(strayData), counts: map[string]uint64{"stray": 1}},
	{name: "stray data to a cold service passes xdp", on: onXDP, world: cold, frame: segmentFrame(strayData),
		verdict: xdpPass},
	{name: "stray rst is not answered", on: onNIC,
		frame: segmentFrame(func(w *world) segment { return w.fromClient("R", 1, 0) }), verdict: tcxDrop,
		counts: map[string]uint64{"stray": 1}},
	{name: "syn and fin at once", on: onNIC, frame: with(synFrame, func(b []byte) { b[47] |= TCPFin; setTCPSum(b[14:]) }),
		verdict: tcxRedirect, counts: map[string]uint64{"stray": 1},
		check: func(w *world, in, out []byte) { s := w.syn(1000); s.flags = "SF"; resetTo(w, s, out) }},
	{name: "no flags", on: onNIC, frame: segmentFrame(func(w *world) segment { return w.fromClient("", 9, 0) }),
		verdict: tcxRedirect,
		check:   reset(func(w *world) segment { return w.fromClient("", 9, 0) }), counts: map[string]uint64{"stray": 1}},

	// Malformed.
	{name: "ihl 4", on: onNIC, frame: with(synFrame, func(b []byte) { b[14] = 0x44 }), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "ihl 15 beyond the packet", on: onNIC,
		frame: with(segmentFrame(func(w *world) segment { return w.fromClient("S", 1, 0) }),
			func(b []byte) { b[14] = 0x4f }),
		verdict: tcxDrop, counts: map[string]uint64{"malformed": 1}},
	{name: "ip version 5", on: onNIC, frame: with(synFrame, func(b []byte) { b[14] = 0x55 }), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "total length 0", on: onNIC, frame: with(synFrame, set16(16, 0)), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "total length shorter than the header", on: onNIC, frame: with(synFrame, set16(16, 19)), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "total length longer than the frame", on: onNIC, frame: with(synFrame, set16(16, 61)), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "total length ends in the tcp header", on: onNIC, frame: with(synFrame, set16(16, 39)), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "total length ends in the tcp options", on: onNIC, frame: with(synFrame, set16(16, 59)), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "data offset 4", on: onNIC, frame: with(synFrame, func(b []byte) { b[46] = 0x40 }), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "data offset beyond the packet", on: onNIC, frame: with(synFrame, func(b []byte) { b[46] = 0xf0 }),
		verdict: tcxDrop, counts: map[string]uint64{"malformed": 1}},
	{name: "malformed passes xdp", on: onXDP, world: cold, frame: with(synFrame, func(b []byte) { b[46] = 0xf0 }),
		verdict: xdpPass},
	{name: "malformed at local", on: onLocal, frame: with(synFrame, set16(16, 0)), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "malformed to an address without service", on: onNIC, frame: with(with(synFrame, set16(16, 0)), toVIP2),
		verdict: tcxNext},
	{name: "tcp options that do not end", on: onNIC,
		frame:   with(synFrame, func(b []byte) { copy(b[54:], bytes.Repeat([]byte{254, 0}, 10)); setTCPSum(b[14:]) }),
		verdict: tcxRedirect, check: toPod1},

	// Fragments.
	{name: "first fragment", on: onNIC, frame: with(synFrame, set16(20, 0x2000)), verdict: tcxDrop,
		counts: map[string]uint64{"fragments": 1}},
	{name: "middle fragment", on: onNIC, frame: with(synFrame, set16(20, 0x2010)), verdict: tcxDrop,
		counts: map[string]uint64{"fragments": 1}},
	{name: "last fragment", on: onNIC, frame: with(synFrame, set16(20, 0x0010)), verdict: tcxDrop,
		counts: map[string]uint64{"fragments": 1}},
	{name: "fragment passes xdp", on: onXDP, world: cold, frame: with(synFrame, set16(20, 0x2000)), verdict: xdpPass},
	{name: "foreign fragment", on: onNIC, frame: with(segmentFrame(toForeign), set16(20, 0x2000)), verdict: tcxNext},
	{name: "fragment to an address without service", on: onNIC, frame: with(with(synFrame, set16(20, 0x2000)), toVIP2),
		verdict: tcxNext},

	// Packets that are not for a service.
	{name: "foreign syn", on: onNIC, frame: segmentFrame(toForeign), verdict: tcxNext},
	{name: "foreign syn at xdp", on: onXDP, frame: segmentFrame(toForeign), verdict: xdpPass},
	{name: "foreign syn of a pod", on: onPod1, frame: segmentFrame(toForeign), verdict: tcxNext},
	{name: "foreign packet on wangell0", on: onLocal, frame: segmentFrame(toForeign), verdict: tcxDrop},
	{name: "reply to this node", on: onReleased, frame: segmentFrame(toForeign), verdict: tcxNext},
	{name: "syn to an address without service", on: onNIC, frame: with(synFrame, toVIP2), verdict: tcxNext},
	{name: "syn to another host's mac", on: onNIC, frame: with(synFrame, func(b []byte) { b[5] ^= 1 }), verdict: tcxNext},
	{name: "syn to all", on: onNIC, frame: with(synFrame, func(b []byte) { copy(b, broadcast) }), verdict: tcxNext},
	{name: "udp", on: onNIC, frame: udp, verdict: tcxNext},
	{name: "udp at xdp", on: onXDP, world: cold, frame: udp, verdict: xdpPass},
	{name: "sctp", on: onNIC, frame: sctp, verdict: tcxNext},
	{name: "ipv6", on: onNIC, frame: ipv6, verdict: tcxNext},
	{name: "ipv6 at xdp", on: onXDP, world: cold, frame: ipv6, verdict: xdpPass},
	{name: "ipv6 of a pod", on: onPod1, frame: ipv6, verdict: tcxNext},
	{name: "vlan tag in the frame", on: onNIC, frame: vlan, verdict: tcxNext},
	{name: "vlan tag at xdp", on: onXDP, world: cold, frame: vlan, verdict: xdpPass},
	{name: "unknown ethertype", on: onNIC, frame: with(synFrame, set16(12, 0x88b5)), verdict: tcxNext},
	{name: "a pod's packet of no flow", on: onPod1, frame: segmentFrame(podData), verdict: tcxNext},
	{name: "a pod's packet of another pod's flow", on: onPod2, world: connected, frame: segmentFrame(podData),
		verdict: tcxNext},

	// ARP.
	{name: "arp request at xdp", on: onXDP, frame: arpFor(vip.Addr(), 1, nil), verdict: xdpTX, check: arpAnswered,
		counts: map[string]uint64{"arp_replies": 1}},
	{name: "arp request", on: onNIC, frame: arpFor(vip.Addr(), 1, nil), verdict: tcxRedirect, check: arpAnswered,
		counts: map[string]uint64{"arp_replies": 1}},
	{name: "arp request where xdp cannot send", on: onXDP, world: func(w *world) {
		w.warm(vip, 1)
		w.must(w.g.objs.Nics.Put(uint32(w.nic.Attrs().Index), gateNic{Mac: hardwareAddr(w.nic.Attrs().HardwareAddr)}))
		w.Cleanup(func() {
			w.must(w.g.objs.Nics.Put(uint32(w.nic.Attrs().Index), gateNic{Mac: hardwareAddr(w.nic.Attrs().HardwareAddr), Tx: 1}))
		})
	}, frame: arpFor(vip.Addr(), 1, nil), verdict: xdpPass},
	{name: "arp probe (RFC 5227)", on: onXDP,
		frame: arpFor(vip.Addr(), 1, func(b []byte) { copy(b[28:32], make([]byte, 4)) }), verdict: xdpTX, check: arpAnswered,
		counts: map[string]uint64{"arp_replies": 1}},
	{name: "arp for an address without service", on: onXDP, frame: arpFor(netip.MustParseAddr("10.46.100.77"), 1, nil),
		verdict: xdpPass},
	{name: "arp for a foreign address", on: onNIC, frame: arpFor(foreign.Addr(), 1, nil), verdict: tcxNext},
	{name: "gratuitous arp", on: onXDP, frame: func(*world) []byte { return arpFrame(1, vip.Addr(), vip.Addr()) },
		verdict: xdpPass},
	{name: "arp reply", on: onXDP, frame: arpFor(vip.Addr(), 2, nil), verdict: xdpPass},
	{name: "arp truncated", on: onXDP, frame: func(*world) []byte { return arpFrame(1, client.Addr(), vip.Addr())[:41] },
		verdict: xdpPass},
	{name: "arp truncated at nic", on: onNIC,
		frame: func(*world) []byte { return arpFrame(1, client.Addr(), vip.Addr())[:41] }, verdict: tcxNext},
	{name: "arp with other hardware length", on: onXDP, frame: arpFor(vip.Addr(), 1, func(b []byte) { b[18] = 8 }),
		verdict: xdpPass},
	{name: "arp with other protocol length", on: onXDP, frame: arpFor(vip.Addr(), 1, func(b []byte) { b[19] = 16 }),
		verdict: xdpPass},
	{name: "arp of other hardware", on: onXDP, frame: arpFor(vip.Addr(), 1, set16(14, 6)), verdict: xdpPass},

	// ICMP.
	{name: "ping", on: onNIC, frame: ping, verdict: tcxRedirect, check: echoed, counts: map[string]uint64{"pings": 1}},
	{name: "ping a cold service", on: onNIC, world: cold, frame: ping, verdict: tcxRedirect, check: echoed,
		counts: map[string]uint64{"pings": 1}},
	{name: "ping from this node", on: onLocal, frame: ping, verdict: tcxRedirect, check: echoed,
		counts: map[string]uint64{"pings": 1}},
	{name: "ping passes xdp", on: onXDP, frame: ping, verdict: xdpPass},
	{name: "ping of an address without service", on: onNIC, frame: with(ping, toVIP2), verdict: tcxNext},
	{name: "echo reply", on: onNIC, frame: func(w *world) []byte { return w.icmpFrame(0, 0, 0, nil) }, verdict: tcxDrop},
	{name: "icmp truncated", on: onNIC, frame: with(ping, set16(16, 27)), verdict: tcxDrop,
		counts: map[string]uint64{"malformed": 1}},
	{name: "fragmentation needed", on: onNIC, world: func(w *world) { connected(w); w.sent(podData(w)) },
		frame:   func(w *world) []byte { return w.fragNeeded(w.asSent(podData(w)), 1400) },
		verdict: tcxRedirect, check: icmpCarried, counts: map[string]uint64{"icmp_errors": 1}},
	{name: "fragmentation needed at local", on: onLocal, world: func(w *world) { connected(w); w.sent(podData(w)) },
		frame:   func(w *world) []byte { return w.fragNeeded(w.asSent(podData(w)), 1400) },
		verdict: tcxRedirect, check: icmpCarried, counts: map[string]uint64{"icmp_errors": 1}},
	{name: "fragmentation needed, packet acknowledged", on: onNIC,
		world: func(w *world) { connected(w); w.sent(podData(w)); w.acked(5011) },
		frame: func(w *world) []byte { return w.fragNeeded(w.asSent(podData(w)), 1400) }, verdict: tcxDrop},
	{name: "forged fragmentation needed, packet never sent", on: onNIC, world: connected,
		frame: func(w *world) []byte { return w.fragNeeded(w.asSent(podData(w)), 68) }, verdict: tcxDrop},
	{name: "forged fragmentation needed, no flow", on: onNIC,
		frame: func(w *world) []byte { return w.fragNeeded(w.asSent(podData(w)), 68) }, verdict: tcxDrop},
	{name: "forged fragmentation needed, udp", on: onNIC, world: connected,
		frame:   with(func(w *world) []byte { return w.fragNeeded(w.asSent(podData(w)), 68) }, func(b []byte) { b[51] = 17 }),
		verdict: tcxDrop},
	{name: "fragmentation needed, inner truncated", on: onNIC, world: connected, frame: func(w *world) []byte {
		return w.icmpFrame(3, 4, 1400, w.asSent(podData(w)).frame()[14:][:27])
	}, verdict: tcxDrop},
	{name: "fragmentation needed, inner ihl 2", on: onNIC, world: connected,
		frame: with(func(w *world) []byte { return w.fragNeeded(w.asSent(podData(w)), 1400) },
			func(b []byte) { b[42] = 0x42 }), verdict: tcxDrop},

	// Released SYNs.
	{name: "released syn that is not parked", on: onReleased, frame: synFrame, verdict: tcxDrop},
	{name: "released data", on: onReleased, world: connected, frame: dataFrame, verdict: tcxDrop},
	{name: "released syn while waking", on: onReleased,
		world: func(w *world) { cold(w); w.wantRun(onXDP, synFrame(w), xdpDrop) }, frame: synFrame, verdict: tcxDrop},
	{name: "released syn", on: onReleased, world: parkedAndWarm, frame: synFrame, verdict: tcxRedirect, check: toPod1},
	{name: "released syn of another sequence number", on: onReleased, world: parkedAndWarm,
		frame: segmentFrame(func(w *world) segment { return w.syn(999) }), verdict: tcxDrop},
}

// TCPFin is the flag in byte 13 of the TCP header.
const TCPFin = 1

// parkedAndWarm parks a SYN and makes its service warm without releasing it.
func parkedAndWarm(w *world) {
	cold(w)
	w.wantRun(onXDP, synFrame(w), xdpDrop)
	w.addPod(vip, 1)
	i, _ := w.g.services.index(vip)
	p, _ := w.g.podTable.index(vip, 1)
	w.g.addServing(i, p)
}

// sent sends a segment of pod 1 to the client.
func (w *world) sent(s segment) { w.Helper(); w.wantRun(onPod1, s.frame(), tcxRedirect) }

// acked sends an acknowledgment of the client.
func (w *world) acked(ack uint32) {
	w.Helper()
	w.wantRun(onNIC, w.fromClient("A", 1001, ack).frame(), tcxRedirect)
}

// asSent returns a pod's segment as the client sees it.
func (w *world) asSent(s segment) segment {
	s.from = vip
	return s
}

func TestFixtureNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range fixtures {
		if seen[f.name] {
			t.Errorf("%q is not unique", f.name)
		}
		seen[f.name] = true
	}
}

func (f *fixture) prepare(w *world) []byte {
	if f.world == nil {
		w.warm(vip, 1)
	} else {
		f.world(w)
	}
	w.before = w.counters()
	return f.frame(w)
}

func TestFixturesGetTheirVerdicts(t *testing.T) {
	all := newWorld(t, nil)
	for _, f := range fixtures {
		t.Run(f.name, func(t *testing.T) {
			w := all.in(t)
			in := f.prepare(w)
			out := w.wantRun(f.on, in, f.verdict)
			if f.check != nil {
				f.check(w, in, out)
			} else if !bytes.Equal(in, out) {
				t.Errorf("changed\n%x to\n%x", in, out)
			}
			if got := w.counted(); !maps.Equal(got, f.counts) && len(got)+len(f.counts) > 0 {
				t.Errorf("counted %v, want %v", got, f.counts)
			}
		})
	}
}

// It tries every truncation of a SYN, of data, of ICMP and of ARP. The kernel runs programs only on frames with a
// complete Ethernet header, and in a test run only XDP on one without a complete IP header;
// TestTaggedForeignAndShortFramesAreIgnored sends such frames.
func TestTruncatedPacketsReachNoPod(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	long := w.syn(1)
	long.payload = []byte("0123456789")
	whole := map[string][]byte{"syn": long.frame(), "data": dataFrame(w), "icmp": w.fragNeeded(w.asSent(podData(w)), 1400),
		"arp": arpFrame(1, client.Addr(), vip.Addr())[:42]}
	for name, frame := range whole {
		if name != "arp" {
			frame = frame[:ethernetHeader+int(binary.BigEndian.Uint16(frame[16:]))] // without padding
		}
		for n := ethernetHeader; n < min(len(frame), 81); n++ {
			in := frame[:n]
			for _, p := range []program{onXDP, onNIC, onLocal, onReleased, onPod1, onPod2} {
				if n < 34 && name != "arp" && p != onXDP || n == ethernetHeader && p != onXDP {
					continue
				}
				verdict, out := w.run(p, in)
				pass := tcxNext
				switch {
				case p == onXDP:
					pass = xdpPass
				case p == onLocal:
					pass = tcxDrop // there is nothing behind wangell0
				case name != "arp":
					pass = tcxDrop // the destination is readable
				}
				if verdict != pass || !bytes.Equal(in, out) {
					t.Fatalf("%s of %d bytes at gate_%v: verdict %d, want %d; changed %v", name, n, p, int32(verdict), int32(pass),
						!bytes.Equal(in, out))
				}
			}
		}
	}
	w.wantCounts(1, 0, 1)
}

// BenchmarkFixtures reports the time of single runs, which are those of cold caches: the packet that comes out is not
// the one that went in. BenchmarkGate runs many in a row.
func BenchmarkFixtures(b *testing.B) {
	all := newWorld(b, nil)
	for _, f := range fixtures {
		b.Run(f.name, func(b *testing.B) {
			w := all.in(b)
			in := f.prepare(w)
			var took []float64
			for b.Loop() {
				took = append(took, float64(w.runs(f.on, in, 1).took))
			}
			reportMedian(b, took)
		})
	}
}

func reportMedian(b *testing.B, took []float64) {
	b.ReportMetric(median(took), "ns/packet")
	b.ReportMetric(0, "ns/op")
}
