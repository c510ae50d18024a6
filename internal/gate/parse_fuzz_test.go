// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// fate is the expected fate of a frame at an external interface, when vip is warm with pod 1 and there is no flow.
type fate int

const (
	fatePass   fate = iota // unchanged, to the stack
	fateDrop               // dropped
	fateAnswer             // sent back as the reply to ARP or ping
	fateReset              // answered with a RST
	fatePod                // to pod 1
)

// fateOf is the specification, in terms of gopacket's decoders. Unlike the gate, these check IP options, and accept a
// total length of zero, as segmentation offload may produce.
func fateOf(frame []byte, ours []byte) fate {
	var eth layers.Ethernet
	if eth.DecodeFromBytes(frame, gopacket.NilDecodeFeedback) != nil {
		return fatePass
	}
	inRange := func(b []byte) bool { return serviceRange.Contains(netip.AddrFrom4([4]byte(b))) }
	if binary.BigEndian.Uint16(frame[12:]) == uint16(layers.EthernetTypeARP) {
		var arp layers.ARP
		if arp.DecodeFromBytes(frame[14:], gopacket.NilDecodeFeedback) != nil || arp.AddrType != layers.LinkTypeEthernet ||
			arp.Protocol != layers.EthernetTypeIPv4 ||
			arp.HwAddressSize != 6 || arp.ProtAddressSize != 4 || arp.Operation != layers.ARPRequest ||
			bytes.Equal(arp.SourceProtAddress, arp.DstProtAddress) ||
			!bytes.Equal(arp.DstProtAddress, vip.Addr().AsSlice()) {
			return fatePass
		}
		return fateAnswer
	}
	if binary.BigEndian.Uint16(frame[12:]) != uint16(layers.EthernetTypeIPv4) || !bytes.Equal(frame[:6], ours) ||
		len(frame) < 34 || !inRange(frame[30:34]) {
		return fatePass
	}
	if !bytes.Equal(frame[30:34], vip.Addr().AsSlice()) {
		return fatePass // no VIP
	}
	plain := bytes.Clone(frame[14:])
	ihl := int(plain[0]&0xf) * 4
	for i := 20; i < ihl && i < len(plain); i++ {
		plain[i] = 1 // no-operation
	}
	var ip layers.IPv4
	var cut truncated
	if ip.DecodeFromBytes(plain, &cut) != nil || cut || ip.Version != 4 || binary.BigEndian.Uint16(plain[2:]) == 0 {
		return fateDrop
	}
	if ip.Flags&layers.IPv4MoreFragments != 0 || ip.FragOffset != 0 {
		return fateDrop
	}
	switch ip.Protocol {
	case layers.IPProtocolICMPv4:
		var icmp layers.ICMPv4
		if icmp.DecodeFromBytes(ip.Payload, &cut) == nil && icmp.TypeCode == layers.CreateICMPv4TypeCode(8, 0) {
			return fateAnswer
		}
		return fateDrop
	case layers.IPProtocolTCP:
	default:
		return fatePass
	}
	var tcp layers.TCP
	if tcp.DecodeFromBytes(ip.Payload, &cut) != nil || cut {
		return fateDrop
	}
	switch {
	case tcp.SYN && !tcp.ACK && !tcp.RST && !tcp.FIN && uint16(tcp.DstPort) == vip.Port():
		return fatePod
	case tcp.RST:
		return fateDrop
	default:
		return fateReset
	}
}

// truncated is a gopacket.DecodeFeedback.
type truncated bool

func (t *truncated) SetTruncated() { *t = true }

// smallTables makes tables small, so that they are quick to iterate over.
func smallTables(c *Config) { c.Sizes = Sizes{Flows: 64, Ring: 64, Parked: 64} }

// judge runs gate_nic and gate_xdp on a frame and checks its fate.
func (w *world) judge(frame []byte) {
	w.Helper()
	w.clearFlows()
	ours := w.nic.Attrs().HardwareAddr
	want := fateOf(frame, ours)
	arpFrame := binary.BigEndian.Uint16(frame[12:]) == uint16(layers.EthernetTypeARP)
	// Packets to a warm service pass XDP, ARP requests do not.
	if verdict, out := w.run(onXDP, frame); want == fateAnswer && arpFrame {
		if verdict != xdpTX || bytes.Equal(out, frame) {
			w.Fatalf("gate_xdp: verdict %d for an ARP request\n%x", verdict, frame)
		}
	} else if verdict != xdpPass || !bytes.Equal(out, frame) {
		w.Fatalf("gate_xdp: verdict %d, changed %v, for\n%x", verdict, !bytes.Equal(out, frame), frame)
	}
	verdict, out := w.run(onNIC, frame)
	wantVerdict := map[fate]uint32{fatePass: tcxNext, fateDrop: tcxDrop, fateAnswer: tcxRedirect, fateReset: tcxRedirect,
		fatePod: tcxRedirect}[want]
	if verdict != wantVerdict {
		w.Fatalf("gate_nic: verdict %d, want fate %d, for\n%x\n%v", int32(verdict), want, frame, dump(frame))
	}
	switch want {
	case fatePass, fateDrop:
		if !bytes.Equal(out, frame) {
			w.Fatalf("gate_nic changed\n%x to\n%x", frame, out)
		}
	case fatePod:
		checkPod(w, frame, out)
	case fateReset:
		if len(out) != 54 || out[47]&4 == 0 || !bytes.Equal(out[26:30], frame[30:34]) ||
			!bytes.Equal(out[30:34], frame[26:30]) {
			w.Fatalf("no RST to\n%x is\n%x", frame, out)
		}
		decode(w, out)
	case fateAnswer:
		if len(out) != len(frame) || !bytes.Equal(out[6:12], ours) || !arpFrame &&
			(out[34+int(out[14]&0xf-5)*4] != 0 || !bytes.Equal(out[30:34], frame[26:30])) {
			w.Fatalf("no answer to\n%x is\n%x", frame, out)
		}
	}
	if n := entries[gateFlowKey, gateFlow](w, w.g.objs.Flows); n != map[bool]int{true: 1}[want == fatePod] {
		w.Fatalf("%d flows after fate %d of\n%x", n, want, frame)
	}
}

// checkPod checks that only addresses and checksums have changed, and that a checksum is off by as much as before.
func checkPod(w *world, frame, out []byte) {
	w.Helper()
	l4 := 14 + int(frame[14]&0xf)*4
	end := 14 + int(binary.BigEndian.Uint16(frame[16:]))
	want := bytes.Clone(frame)
	copy(want[0:], podMAC[1])
	copy(want[6:], w.podLink[1].Attrs().HardwareAddr)
	copy(want[30:], podAt[1].Addr().AsSlice())
	binary.BigEndian.PutUint16(want[l4+2:], podAt[1].Port())
	copy(want[24:26], out[24:26])
	copy(want[l4+16:], out[l4+16:l4+18])
	if !bytes.Equal(want, out) {
		w.Fatalf("became\n%x, want\n%x", out, want)
	}
	sums := func(f []byte) (ip, tcp uint16) {
		return fold16(sum16(0, f[14:l4])) % 0xffff, fold16(sum16(pseudoSum(f[26:30], f[30:34], end-l4), f[l4:end])) % 0xffff
	}
	ip0, tcp0 := sums(frame)
	ip1, tcp1 := sums(out)
	if ip0 != ip1 || tcp0 != tcp1 {
		w.Fatalf("checksums are off by %d and %d, before by %d and %d, for\n%x", ip1, tcp1, ip0, tcp0, frame)
	}
}

// FuzzParse compares the gate's parser with gopacket's: no malformed packet may reach a pod, and nothing that is not
// for a service may be changed.
func FuzzParse(f *testing.F) {
	w := newWorld(f, smallTables)
	w.warm(vip, 1)
	ours := w.nic.Attrs().HardwareAddr
	seed := *w
	for _, fx := range fixtures {
		if fx.world == nil || fx.on == onNIC || fx.on == onXDP {
			frame := fx.frame(&seed)
			f.Add(frame, !bytes.Equal(frame[:6], ours))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte, others bool) {
		if len(frame) < 34 || len(frame) > 2000 || frame[12] == 0x86 && frame[13] == 0xdd && len(frame) < 54 {
			return // a test run needs an IP header, and longer frames behave the same
		}
		frame = bytes.Clone(frame)
		if !others {
			copy(frame, ours)
		}
		sub := *w
		sub.TB = t
		sub.judge(frame)
	})
}

// The same check for every value of every header byte of some packets.
func TestParseWithEveryValueOfEveryByte(t *testing.T) {
	w := newWorld(t, smallTables)
	w.warm(vip, 1)
	options := w.syn(7)
	options.ipOptions = router
	for _, frame := range [][]byte{synFrame(w), options.frame(), dataFrame(w), ping(w),
		arpFrame(1, client.Addr(), vip.Addr())} {
		for at := 12; at < min(len(frame), 80); at++ {
			for v := range 256 {
				in := bytes.Clone(frame)
				in[at] = byte(v)
				w.judge(in)
			}
		}
	}
}
