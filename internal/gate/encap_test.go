// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// The nodes in packet tests: this one, a known one, and an unknown one.
var (
	thisNode  = netip.MustParseAddr("10.46.200.1")
	otherNode = netip.MustParseAddr("10.46.200.2")
	stranger  = netip.MustParseAddr("10.46.200.66")
)

// Types and flags of encapsulated packets.
const (
	toPodType     = byte(gateEncapTypeENCAP_TO_POD)
	toClientType  = byte(gateEncapTypeENCAP_TO_CLIENT)
	closedType    = byte(gateEncapTypeENCAP_CLOSED)
	flowQueryType = byte(gateEncapTypeENCAP_FLOW_QUERY)
	flowClaimType = byte(gateEncapTypeENCAP_FLOW_CLAIM)
	inside        = byte(gateEncapFlagENCAP_INSIDE)
	closes        = byte(gateEncapFlagENCAP_CLOSES)
	left          = byte(gateEncapFlagENCAP_LEFT)
	moved         = byte(gateEncapFlagENCAP_MOVED)
)

// outerLen is the length of the headers before the inner packet, apart from Ethernet's.
const outerLen = 40

// newRemoteWorld returns a world whose gate exchanges encapsulated packets.
func newRemoteWorld(t testing.TB, change func(*Config)) *world {
	t.Helper()
	w := newWorld(t, func(c *Config) {
		sh(t, "ip addr add %v/24 dev nic", thisNode)
		c.EncapPort, c.NodeAddr = encapPort, thisNode
		if change != nil {
			change(c)
		}
	})
	w.must(w.g.SetNodes(plain(thisNode, otherNode)))
	w.must(w.g.Announce(true, nil))
	return w
}

// What a daemon is told of one node must not keep it from others.
func TestNodesAreSetWithoutThoseThatAreNoUse(t *testing.T) {
	w := newRemoteWorld(t, nil)
	nodes := append([]Node{{Addr: netip.MustParseAddr("fd00::1")}}, plain(stranger)...)
	if err := w.g.SetNodes(nodes); err == nil || !strings.Contains(err.Error(), "fd00::1: not an IPv4 address") {
		t.Errorf("error %v", err)
	}
	var flags uint32
	w.must(w.g.objs.Nodes.Lookup(toBE(stranger), &flags))
	if err := w.g.objs.Nodes.Lookup(toBE(otherNode), &flags); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("a node that is no longer set: %v", err)
	}
}

// remote adds a service whose pod 1 is on the other node.
func (w *world) remote() {
	w.Helper()
	w.service(vip, 100, 100)
	w.must(w.g.AddPod(Pod{ID: 1, Service: vip, Addr: podAt[1], Node: otherNode}))
	w.serve(vip, 1)
}

// wrap encapsulates the IP packet of a frame like another node.
func (w *world) wrap(from netip.Addr, typ, flags byte, pod uint64, frame []byte) []byte {
	w.Helper()
	return w.wrapTo(from, thisNode, typ, flags, pod, frame)
}

// wrapTo is like wrap for a packet to any node.
func (w *world) wrapTo(from, to netip.Addr, typ, flags byte, pod uint64, frame []byte) []byte {
	w.Helper()
	inner := frame[ethernetHeader:]
	inner = inner[:binary.BigEndian.Uint16(inner[2:])]
	header := make([]byte, 12)
	header[0], header[1], header[2] = 1, typ, flags
	binary.BigEndian.PutUint64(header[4:], pod)
	ip := ip4(from, to, layers.IPProtocolUDP)
	udp := &layers.UDP{SrcPort: 50000, DstPort: encapPort}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		w.Fatal(err)
	}
	f := serialize(&layers.Ethernet{SrcMAC: clientMAC, DstMAC: w.nic.Attrs().HardwareAddr,
		EthernetType: layers.EthernetTypeIPv4}, ip, udp, gopacket.Payload(append(header, inner...)))
	binary.BigEndian.PutUint16(f[40:], 0)
	return f
}

// unwrap checks the outer headers of a frame to the other node, and returns the inner packet as a frame with the MAC
// addresses of like.
func (w *world) unwrap(out []byte, typ, flags byte, pod uint64, like []byte) []byte {
	w.Helper()
	if len(out) < ethernetHeader+outerLen+20 {
		w.Fatalf("not encapsulated: %x", out)
	}
	inner := out[ethernetHeader+outerLen:]
	length := int(binary.BigEndian.Uint16(inner[2:]))
	o := out[ethernetHeader:][:outerLen]
	want := make([]byte, outerLen)
	copy(want, []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17})
	binary.BigEndian.PutUint16(want[2:], uint16(length+outerLen))
	copy(want[12:], thisNode.AsSlice())
	copy(want[16:], otherNode.AsSlice())
	binary.BigEndian.PutUint16(want[10:], ^fold16(sum16(0, want[:20])))
	copy(want[20:], o[20:22])
	binary.BigEndian.PutUint16(want[22:], encapPort)
	binary.BigEndian.PutUint16(want[24:], uint16(length+20))
	want[28], want[29], want[30] = 1, typ, flags
	binary.BigEndian.PutUint64(want[32:], pod)
	if !bytes.Equal(o, want) {
		w.Fatalf("outer headers\n%x, want\n%x", o, want)
	}
	if port := binary.BigEndian.Uint16(o[20:]); port < 0xc000 {
		w.Errorf("source port %d", port)
	}
	f := append(bytes.Clone(like[:ethernetHeader]), inner...)
	decode(w, f)
	return f
}

// bare returns a segment's frame without padding, as it is when it arrives encapsulated.
func bare(s segment) []byte {
	f := s.frame()
	return f[:ethernetHeader+int(binary.BigEndian.Uint16(f[16:]))]
}

// straight checks that out is a pod's frame in, translated to the service address. Its MAC addresses are set later.
func (w *world) straight(in, out []byte) {
	w.Helper()
	rewritten(w, in, out, in[6:12], in[:6], vip, destinationOf(in))
}

// mssOf returns the MSS of a SYN; 0 if it has none.
func mssOf(t testing.TB, frame []byte) uint16 {
	t.Helper()
	_, tcp := tcpOf(t, decode(t, frame))
	for _, o := range tcp.Options {
		if o.OptionType == layers.TCPOptionKindMSS {
			return binary.BigEndian.Uint16(o.OptionData)
		}
	}
	return 0
}

// sameButMSS checks that two frames differ only in the MSS option and the TCP checksum.
func sameButMSS(t testing.TB, a, b []byte) {
	t.Helper()
	plain := func(f []byte) []byte {
		f = bytes.Clone(f)
		l4 := ethernetHeader + int(f[14]&0xf)*4
		f[l4+16], f[l4+17] = 0, 0
		if at := bytes.Index(f[l4+20:], []byte{2, 4}); at >= 0 {
			f[l4+20+at+2], f[l4+20+at+3] = 0, 0
		}
		return f
	}
	if !bytes.Equal(plain(a), plain(b)) {
		t.Errorf("became\n%x from\n%x", b, a)
	}
}

// The edge node sends clients' segments to the home node, and what comes back to the client.
func TestEdgeNodeForwardsFlowsToRemotePods(t *testing.T) {
	all := newRemoteWorld(t, nil)
	t.Run("nic", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.before = w.counters()
		syn := w.syn(1000)
		for _, f := range [][]byte{syn.frame(), syn.frame()} { // the second is a retransmission
			inner := w.unwrap(w.wantRun(onNIC, f, tcxRedirect), toPodType, 0, 1, f)
			sameButMSS(t, f, inner)
			if m := mssOf(t, inner); m != 1500-outerLen-40 {
				t.Errorf("MSS %d", m)
			}
		}
		w.wantCounts(0, 1, 0)
		// The SYN-ACK returns through this node.
		reply := w.asSent(w.fromPod(1, "SA", 5000, 1001))
		reply.options = synOptions
		out := w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, reply.frame()), tcxRedirect)
		sameButMSS(t, append(bytes.Clone(out[:12]), reply.frame()[12:]...), out)
		if m := mssOf(t, out); m != 1420 || !bytes.Equal(out[:6], clientMAC) ||
			!bytes.Equal(out[6:12], w.nic.Attrs().HardwareAddr) {
			t.Errorf("MSS %d, %x", m, out)
		}
		ack := w.fromClient("A", 1001, 5001)
		ack.padding = 6
		f := ack.frame()
		if got := w.wantRun(onNIC, f, tcxRedirect); !bytes.Equal(w.unwrap(got[:len(got)-6], toPodType, 0, 1, f),
			f[:len(f)-6]) {
			t.Errorf("changed: %x", got)
		}
		w.wantCounts(1, 0, 1)
		// The pod's data goes straight to the client; the client's next segments show it.
		data := w.fromClient("PA", 1001, 45001, make([]byte, 100)...).frame()
		if got := w.unwrap(w.wantRun(onNIC, data, tcxRedirect), toPodType, 0, 1, data); !bytes.Equal(got, data) {
			t.Errorf("changed: %x", got)
		}
		for i := range uint32(100) { // beyond the window that the pod offered in its SYN-ACK
			w.wantRun(onNIC, w.fromClient("PA", 1101+i*1400, 45001, make([]byte, 1400)...).frame(), tcxRedirect)
		}
		// The pod closes first. Its ACK of the client's FIN returns through this node as well.
		end := uint32(1101 + 100*1400)
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, w.asSent(w.fromPod(1, "FA", 45001, end)).frame()),
			tcxRedirect)
		w.wantRun(onNIC, w.fromClient("FA", end, 45002).frame(), tcxRedirect)
		w.wantCounts(1, 0, 1)
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, closes, 1, w.asSent(w.fromPod(1, "A", 45002, end+1)).frame()),
			tcxRedirect)
		w.wantCounts(0, 0, 1)
		if got := w.counted(); len(got) > 0 {
			t.Errorf("counted %v", got)
		}
	})
	connected := func(w *world, on program) {
		w.remote()
		w.wantRun(on, w.syn(1000).frame(), tcxRedirect)
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, w.asSent(w.fromPod(1, "SA", 5000, 1001)).frame()),
			tcxRedirect)
		w.wantRun(on, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
		w.wantCounts(1, 0, 1)
		w.before = w.counters()
	}
	t.Run("local", func(t *testing.T) {
		w := all.in(t)
		connected(w, onLocal)
		f := dataFrame(w)
		if got := w.unwrap(w.wantRun(onLocal, f, tcxRedirect), toPodType, inside, 1, f); !bytes.Equal(got, f) {
			t.Errorf("changed: %x", got)
		}
		reply := w.asSent(w.fromPod(1, "PA", 5001, 1006, make([]byte, 100)...)).frame()
		out := w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, reply), tcxRedirect)
		if !bytes.Equal(out[12:], reply[12:]) || !bytes.Equal(out[:6], w.g.dev.innerMAC) {
			t.Errorf("became %x from %x", out, reply)
		}
		// All segments pass here, so an ACK of data that was never sent is out of window.
		w.wantRun(onLocal, w.fromClient("FA", 1006, 9999).frame(), tcxRedirect)
		if got := w.counted(); !maps.Equal(got, map[string]uint64{"out_of_window": 1}) {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("resets", func(t *testing.T) {
		for name, c := range map[string]struct {
			frame func(w *world) []byte
			open  uint32
		}{
			"of the pod, after data that bypassed this node": {func(w *world) []byte {
				return w.wrap(otherNode, toClientType, closes, 1, w.asSent(w.fromPod(1, "R", 30001, 0)).frame())
			}, 0},
			"of the pod, which its node considers invalid": {func(w *world) []byte {
				return w.wrap(otherNode, toClientType, 0, 1, w.asSent(w.fromPod(1, "R", 30001, 0)).frame())
			}, 1},
			"of the pod, of an earlier flow": {func(w *world) []byte {
				return w.wrap(otherNode, toClientType, closes, 1,
					w.asSent(w.fromPod(1, "RA", 30001, 4292871169)).frame())
			}, 1},
			"of the client":                 {func(w *world) []byte { return w.fromClient("R", 1001, 0).frame() }, 0},
			"of the client, not its latest": {func(w *world) []byte { return w.fromClient("R", 990, 0).frame() }, 1},
			"of the client, reported by the home node": {func(w *world) []byte {
				return w.wrap(otherNode, closedType, 0, 1, w.fromClient("R", 990, 0).frame())
			}, 0},
			"of the client, reported for another pod": {func(w *world) []byte {
				return w.wrap(otherNode, closedType, 0, 2, w.fromClient("R", 990, 0).frame())
			}, 1},
		} {
			w := all.in(t)
			connected(w, onNIC)
			w.run(onNIC, c.frame(w))
			if o, h, n := w.counts(vip, 1); o != c.open || h != 0 || n != 1 {
				t.Errorf("%s: %d open, %d half-open, %d new; want %d open", name, o, h, n, c.open)
			}
		}
	})
	t.Run("late replies", func(t *testing.T) {
		w := all.in(t)
		connected(w, onNIC)
		reply := w.asSent(w.fromPod(1, "FA", 5001, 1001))
		other := reply
		other.to = netip.AddrPortFrom(client.Addr(), 1)
		w.must(w.g.SetNodes(plain(otherNode, stranger)))
		defer func() { w.must(w.g.SetNodes(plain(otherNode))) }()
		// The pod gets a RST.
		for _, s := range []struct {
			segment
			pod uint64
		}{{other, 1}, {reply, 2}} {
			f := s.frame()
			like := append(bytes.Clone(f[6:12]), f[:6]...)
			resetTo(t, s.segment,
				w.unwrap(w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, s.pod, f), tcxRedirect), toPodType,
					0, s.pod,
					append(like, f[12:]...)))
		}
		w.wantRun(onNIC, w.wrap(stranger, toClientType, 0, 1, reply.frame()), tcxRedirect)
		other.flags = "R"
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, other.frame()), tcxDrop)
		if got := w.counted(); !maps.Equal(got, map[string]uint64{"late_replies": 4}) {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("pod gone", func(t *testing.T) {
		w := all.in(t)
		connected(w, onNIC)
		w.must(w.g.RemovePod(vip, 1))
		s := w.fromClient("PA", 1001, 5001, 1)
		resetTo(t, s, w.wantRun(onNIC, s.frame(), tcxRedirect))
	})
	t.Run("icmp error", func(t *testing.T) {
		w := all.in(t)
		connected(w, onNIC)
		f := w.fragNeeded(w.asSent(podData(w)), 1400)
		if got := w.unwrap(w.wantRun(onNIC, f, tcxRedirect), toPodType, inside, 1, f); !bytes.Equal(got, f) {
			t.Errorf("changed: %x", got)
		}
	})
	t.Run("released", func(t *testing.T) {
		w := all.in(t)
		cold(w)
		w.wantRun(onXDP, synFrame(w), xdpDrop)
		w.must(w.g.AddPod(Pod{ID: 1, Service: vip, Addr: podAt[1], Node: otherNode}))
		i, _ := w.g.services.index(vip)
		p, _ := w.g.podTable.index(vip, 1)
		w.g.addServing(i, p)
		f := synFrame(w)
		sameButMSS(t, f, w.unwrap(w.wantRun(onReleased, f, tcxRedirect), toPodType, 0, 1, f))
		w.wantParked(0, 0)
		w.wantCounts(0, 1, 0)
	})
	t.Run("too big and no route", func(t *testing.T) {
		w := all.in(t)
		connected(w, onLocal)
		w.wantRun(onLocal, w.fromClient("A", 1001, 5001, make([]byte, 1421)...).frame(), tcxDrop)
		w.wantRun(onLocal, w.fromClient("A", 1001, 5001, make([]byte, 1420)...).frame(), tcxRedirect)
		w.must(w.g.RemovePod(vip, 1))
		w.must(w.g.AddPod(Pod{ID: 1, Service: vip, Addr: podAt[1], Node: netip.MustParseAddr("198.51.100.1")}))
		w.serve(vip, 1)
		w.wantRun(onLocal, w.syn(7).fromOther(9, 9).frame(), tcxDrop)
		if got := w.counted(); !maps.Equal(got, map[string]uint64{"too_big": 1, "no_route": 1}) {
			t.Errorf("counted %v", got)
		}
	})
}

// The home node gives an edge node's packets to the pod, and sends replies through the edge node or straight to the
// client.
func TestHomeNodeServesFlowsFromEdgeNodes(t *testing.T) {
	all := newRemoteWorld(t, nil)
	wrapped := func(w *world, flags byte, s segment) []byte {
		return w.wrap(otherNode, toPodType, flags, 1, s.frame())
	}
	begin := func(t *testing.T) *world {
		w := all.in(t)
		w.service(vip, 100, 100)
		w.addPod(vip, 1)
		w.before = w.counters()
		return w
	}
	connect := func(t *testing.T, w *world, flags byte) {
		t.Helper()
		syn := w.syn(1000)
		out := w.wantRun(onNIC, wrapped(w, flags, syn), tcxRedirect)
		if podOf(t, out) != 1 || mssOf(t, out) != 1420 {
			t.Fatalf("went to %v with MSS %d", destinationOf(out), mssOf(t, out))
		}
		w.wantCounts(0, 1, 0)
		synack := w.fromPod(1, "SA", 5000, 1001)
		synack.options = synOptions
		back := w.unwrap(w.wantRun(onPod1, synack.frame(), tcxRedirect), toClientType, 0, 1, synack.frame())
		sameButMSS(t, w.asSent(synack).frame(), back)
		if m := mssOf(t, back); m != 1420 {
			t.Errorf("MSS %d", m)
		}
		w.toPod(1, bare(w.fromClient("A", 1001, 5001)),
			w.wantRun(onNIC, wrapped(w, flags, w.fromClient("A", 1001, 5001)), tcxRedirect))
		w.wantCounts(1, 0, 1)
	}
	t.Run("replies", func(t *testing.T) {
		w := begin(t)
		connect(t, w, 0)
		data := w.fromClient("PA", 1001, 5001, 1, 2, 3)
		w.toPod(1, bare(data), w.wantRun(onNIC, wrapped(w, 0, data), tcxRedirect))
		for _, s := range []segment{w.fromPod(1, "A", 5001, 1004),
			w.fromPod(1, "PA", 5001, 1004, make([]byte, 1448)...)} {
			w.straight(bare(s), w.wantRun(onPod1, bare(s), tcxRedirect))
		}
		// Half-closed: the ACK of the FIN goes through the edge node, data straight to the client.
		w.wantRun(onNIC, wrapped(w, 0, w.fromClient("FA", 1004, 6449)), tcxRedirect)
		for range 2 {
			ack := w.fromPod(1, "A", 6449, 1005)
			w.unwrap(w.wantRun(onPod1, ack.frame(), tcxRedirect), toClientType, 0, 1, ack.frame())
		}
		more := w.fromPod(1, "PA", 6449, 1005, make([]byte, 100)...)
		w.straight(more.frame(), w.wantRun(onPod1, more.frame(), tcxRedirect))
		fin := w.fromPod(1, "FA", 6549, 1005)
		w.unwrap(w.wantRun(onPod1, fin.frame(), tcxRedirect), toClientType, 0, 1, fin.frame())
		// The segment that ends the flow goes through the edge node, too.
		last := w.fromClient("A", 1005, 6550)
		w.unwrap(w.wantRun(onNIC, wrapped(w, 0, last), tcxRedirect), closedType, 0, 1, last.frame())
		w.wantCounts(0, 0, 1)
		again := w.wantRun(onNIC, wrapped(w, 0, last), tcxRedirect)
		w.toPod(1, bare(last), again)
		if got := w.counted(); len(got) > 0 {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("the last ack", func(t *testing.T) {
		w := begin(t)
		connect(t, w, 0)
		fin := w.fromPod(1, "FA", 5001, 1001)
		w.unwrap(w.wantRun(onPod1, fin.frame(), tcxRedirect), toClientType, 0, 1, fin.frame())
		w.wantRun(onNIC, wrapped(w, 0, w.fromClient("FA", 1001, 5002)), tcxRedirect)
		for range 2 {
			last := w.fromPod(1, "A", 5002, 1002)
			w.unwrap(w.wantRun(onPod1, last.frame(), tcxRedirect), toClientType, closes, 1, last.frame())
			w.wantCounts(0, 0, 1)
		}
	})
	t.Run("client on the edge node", func(t *testing.T) {
		w := begin(t)
		connect(t, w, inside)
		s := w.fromPod(1, "PA", 5001, 1001, make([]byte, 1380)...)
		back := w.unwrap(w.wantRun(onPod1, s.frame(), tcxRedirect), toClientType, 0, 1, s.frame())
		if !bytes.Equal(back, w.asSent(s).frame()) {
			t.Errorf("became %x", back)
		}
		// The edge node sees all segments of this flow, so it needs no word of the client's RST.
		r := w.fromClient("R", 1001, 0)
		w.toPod(1, bare(r), w.wantRun(onNIC, wrapped(w, inside, r), tcxRedirect))
		w.wantCounts(0, 0, 1)
	})
	t.Run("no route to the client", func(t *testing.T) {
		w := begin(t)
		sh(t, "ip route add unreachable 10.47.0.0/16")
		defer sh(t, "ip route del unreachable 10.47.0.0/16")
		far := func(s segment) segment {
			a := netip.AddrPortFrom(netip.MustParseAddr("10.47.0.1"), client.Port())
			if s.to == vip {
				s.from = a
			} else {
				s.to = a
			}
			return s
		}
		w.wantRun(onNIC, wrapped(w, 0, far(w.syn(1000))), tcxRedirect)
		w.wantRun(onPod1, far(w.fromPod(1, "SA", 5000, 1001)).frame(), tcxRedirect)
		w.wantRun(onNIC, wrapped(w, 0, far(w.fromClient("A", 1001, 5001))), tcxRedirect)
		s := far(w.fromPod(1, "PA", 5001, 1001, 1)).frame()
		w.unwrap(w.wantRun(onPod1, s, tcxRedirect), toClientType, 0, 1, s)
	})
	t.Run("reset of the client", func(t *testing.T) {
		w := begin(t)
		connect(t, w, 0)
		r := bare(w.fromClient("R", 1001, 0))
		if got := w.unwrap(w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, r), tcxRedirect), closedType, 0, 1,
			r); !bytes.Equal(got[34:], r[34:]) || !bytes.Equal(got[26:34], r[26:34]) {
			t.Errorf("became %x from %x", got, r)
		}
		w.wantCounts(0, 0, 1)
	})
	t.Run("reset of the pod", func(t *testing.T) {
		w := begin(t)
		connect(t, w, 0)
		r := w.fromPod(1, "RA", 5001, 1001).frame()
		w.unwrap(w.wantRun(onPod1, r, tcxRedirect), toClientType, closes, 1, r)
		w.wantCounts(0, 0, 1)
	})
	t.Run("pod or flow unknown", func(t *testing.T) {
		w := begin(t)
		for _, s := range []segment{w.syn(1000), w.fromClient("PA", 1001, 5001, 1)} {
			pod, flags := uint64(1), closes
			if s.flags == "S" {
				pod, flags = 7, closes|left
			}
			f := s.frame()
			like := bytes.Clone(f)
			copy(like, f[6:12])
			copy(like[6:], f[:6])
			resetTo(t, s,
				w.unwrap(w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, pod, f), tcxRedirect), toClientType,
					flags, pod, like))
		}
		w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, w.fromClient("R", 1, 0).frame()), tcxDrop)
		w.wantCounts(0, 0, 0)
		if got := w.counted(); !maps.Equal(got, map[string]uint64{"stray": 3}) {
			t.Errorf("counted %v", got)
		}
	})
	t.Run("the edge node chooses another pod", func(t *testing.T) {
		w := begin(t)
		connect(t, w, 0)
		w.addPod(vip, 2)
		// The edge node has forgotten the flow and sends a new one to another pod.
		out := w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 2, w.syn(9000).frame()), tcxRedirect)
		if podOf(t, out) != 2 {
			t.Errorf("went to %v", destinationOf(out))
		}
		w.wantCounts(0, 0, 1)
		if o, h, n := w.counts(vip, 2); o != 0 || h != 1 || n != 0 {
			t.Errorf("pod 2: %d open, %d half-open, %d new", o, h, n)
		}
	})
	t.Run("the client moves to another edge node, then here", func(t *testing.T) {
		w := begin(t)
		w.must(w.g.SetNodes(plain(otherNode, stranger)))
		defer func() { w.must(w.g.SetNodes(plain(otherNode))) }()
		connect(t, w, 0)
		w.wantRun(onNIC, w.wrap(stranger, toPodType, inside, 1, w.fromClient("A", 1001, 5001).frame()), tcxRedirect)
		if f, _ := w.flow(client, vip); f.Origin.Edge != toBE(stranger) || f.Origin.Path != gateFlowPathPATH_EDGE_NODE {
			t.Errorf("origin %+v", f.Origin)
		}
		w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
		s := w.fromPod(1, "FA", 5001, 1001).frame()
		w.toClient(s, w.wantRun(onPod1, s, tcxRedirect))
	})
	t.Run("icmp error", func(t *testing.T) {
		w := begin(t)
		connect(t, w, 0)
		w.sent(podData(w))
		f := w.fragNeeded(w.asSent(podData(w)), 1400)
		icmpCarried(w, f, w.wantRun(onNIC, w.wrap(otherNode, toPodType, inside, 1, f), tcxRedirect))
	})
}

// The MSS is never increased.
func TestMSSIsClampedWhereverTheOptionStands(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.remote()
	nop := layers.TCPOption{OptionType: layers.TCPOptionKindNop}
	mss := func(n uint16) layers.TCPOption {
		return layers.TCPOption{OptionType: layers.TCPOptionKindMSS, OptionLength: 4,
			OptionData: binary.BigEndian.AppendUint16(nil, n)}
	}
	sack := synOptions[1]
	for i, c := range []struct {
		options []layers.TCPOption
		want    uint16
	}{
		{[]layers.TCPOption{mss(1460)}, 1420}, {[]layers.TCPOption{nop, mss(1460)}, 1420},
		{[]layers.TCPOption{nop, nop, mss(1460)}, 1420},
		{[]layers.TCPOption{sack, nop, mss(65535), nop}, 1420}, {[]layers.TCPOption{mss(1421)}, 1420},
		{[]layers.TCPOption{mss(1420)}, 1420},
		{[]layers.TCPOption{mss(536)}, 536}, {[]layers.TCPOption{nop, mss(100)}, 100}, {[]layers.TCPOption{sack}, 0},
		{nil, 0},
		{append(append([]layers.TCPOption{}, synOptions...),
			layers.TCPOption{OptionType: 254, OptionLength: 12, OptionData: make([]byte, 10)}, mss(9)), 1420},
	} {
		for _, partial := range []bool{false, true} {
			s := w.syn(uint32(i + 1))
			s.options, s.from = c.options, netip.AddrPortFrom(client.Addr(), uint16(1000+i))
			s.payload = make([]byte, i) // odd lengths as well
			f := s.frame()
			if partial {
				continue // test runs have no partial checksums; TestRemotePodsServeClientsEverywhere has
			}
			inner := w.unwrap(w.wantRun(onNIC, f, tcxRedirect), toPodType, 0, 1, f)
			if m := mssOf(t, inner); m != c.want {
				t.Errorf("options %v: MSS %d, want %d", c.options, m, c.want)
			}
			sameButMSS(t, f, inner)
		}
	}
}

// Packets from unknown addresses and truncated or inconsistent ones reach no pod.
func TestBadEncapsulationIsDropped(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.service(vip, 100, 100)
	w.addPod(vip, 1)
	good := w.wrap(otherNode, toPodType, 0, 1, w.syn(1000).frame())
	counted := func(name string) {
		t.Helper()
		if got := w.counted(); !maps.Equal(got, map[string]uint64{name: 1}) {
			t.Fatalf("counted %v, want one %s", got, name)
		}
		w.before = w.counters()
	}
	w.before = w.counters()
	w.wantRun(onNIC, w.wrap(stranger, toPodType, 0, 1, w.syn(1000).frame()), tcxDrop)
	counted("unknown_node")
	for n := 34; n < len(good); n++ {
		w.untouched(onNIC, good[:n]) // shorter than its IP header says: the stack drops it
		if n < 42 {
			continue // no UDP header
		}
		b := bytes.Clone(good[:n])
		set16(16, uint16(n-ethernetHeader))(b)
		set16(38, uint16(n-34))(b)
		if verdict, _ := w.run(onNIC, b); verdict != tcxDrop {
			t.Fatalf("%d bytes: verdict %d", n, int32(verdict))
		}
		counted("bad_encap")
	}
	for name, change := range map[string]func(b []byte){
		"version": func(b []byte) { b[42] = 3 }, "type": func(b []byte) { b[43] = 9 }, "outer length": set16(16, 99),
		"udp length":   set16(38, 99),
		"inner length": set16(56, 99), "inner version": func(b []byte) { b[54] = 0x65 },
		"inner protocol": func(b []byte) { b[63] = 17 },
		"inner fragment": set16(60, 0x2000), "inner destination": func(b []byte) { b[70] = 11 },
		"a reply": func(b []byte) { b[43] = toClientType },
	} {
		b := bytes.Clone(good)
		change(b)
		if verdict, _ := w.run(onNIC, b); verdict != tcxDrop {
			t.Errorf("%s: verdict %d", name, int32(verdict))
		}
		counted("bad_encap")
	}
	// Not for this gate: it goes to the stack.
	for _, change := range []func(b []byte){set16(36, encapPort+1), func(b []byte) { b[33] ^= 1 }, set16(20, 0x2000),
		func(b []byte) { b[23] = 132 }} {
		b := bytes.Clone(good)
		change(b)
		w.untouched(onNIC, b)
	}
	if n := entries[gateFlowKey, gateFlow](w, w.g.objs.Flows); n != 0 {
		t.Errorf("%d flows", n)
	}
}

// FuzzDecapsulate gives the gate encapsulated packets from a known node. Whatever is inside, a pod only gets
// well-formed packets of the service, and nothing else changes.
func FuzzDecapsulate(f *testing.F) {
	w := newRemoteWorld(f, smallTables)
	w.warm(vip, 1)
	seed := *w
	for _, fx := range fixtures {
		if frame := fx.frame; fx.world == nil && fx.on == onNIC {
			if b := frame(&seed); len(b) >= 34 {
				f.Add(byte(toPodType), byte(0), uint64(1), b[14:])
				f.Add(byte(toClientType), byte(closes), uint64(1), b[14:])
				f.Add(byte(flowQueryType), byte(0), uint64(0), b[14:])
				f.Add(byte(flowClaimType), byte(3), uint64(1), b[14:])
			}
		}
	}
	f.Add(byte(toPodType), byte(inside), uint64(2), seed.syn(1).frame()[14:])
	f.Fuzz(func(t *testing.T, typ, flags byte, pod uint64, inner []byte) {
		if len(inner) > 1500 {
			return
		}
		sub := *w
		sub.TB = t
		sub.clearFlows()
		outer := sub.wrap(otherNode, typ, flags, pod, sub.syn(1).frame())[:ethernetHeader+outerLen]
		binary.BigEndian.PutUint16(outer[16:], uint16(outerLen+len(inner)))
		binary.BigEndian.PutUint16(outer[38:], uint16(20+len(inner)))
		frame := append(bytes.Clone(outer), inner...)
		verdict, out := sub.run(onNIC, frame)
		if verdict == tcxDrop {
			return
		}
		// The pod got it like the same frame at gate_nic, or the sender got a RST.
		plain := append(bytes.Clone(frame[:ethernetHeader]), inner...)
		if verdict != tcxRedirect || len(inner) < 20 || int(binary.BigEndian.Uint16(inner[2:])) != len(inner) {
			t.Fatalf("verdict %d for\n%x", int32(verdict), frame)
		}
		switch fateOf(plain, sub.nic.Attrs().HardwareAddr) {
		case fatePod:
			if pod != 1 {
				break // unknown pod: RST
			}
			if destinationOf(out) != podAt[1] {
				t.Fatalf("went to %v\n%x", destinationOf(out), frame)
			}
			return
		case fateReset:
		default:
			// The home node knows no pod of an address in the range that is not a VIP.
			if a := netip.AddrFrom4([4]byte(inner[16:20])); a == vip.Addr() || !serviceRange.Contains(a) {
				t.Fatalf("verdict %d for\n%x\n%v", int32(verdict), frame, dump(plain))
			}
		}
		want := closes
		if pod != 1 || destinationOf(plain) != vip {
			want |= left // an unknown pod
		}
		if r := out[ethernetHeader+outerLen:]; out[43] != toClientType || out[44] != want || len(r) != 40 ||
			r[33]&4 == 0 ||
			!bytes.Equal(r[12:16], inner[16:20]) || !bytes.Equal(r[16:20], inner[12:16]) {
			t.Fatalf("no RST to\n%x is\n%x", frame, out)
		}
	})
}
