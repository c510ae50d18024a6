// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// routedBy is an IP option that names routers to pass: loose (131) or strict (137) source route.
func routedBy(kind byte, after ...layers.IPv4Option) []layers.IPv4Option {
	return append(after, layers.IPv4Option{OptionType: kind, OptionLength: 7, OptionData: []byte{4, 10, 99, 0, 1}},
		layers.IPv4Option{OptionType: 0})
}

// No packet that no client can have sent parks anything or wakes its service, wherever it arrives.
func TestInvalidSYNWakesNothing(t *testing.T) {
	all := newWorld(t, nil)
	from := func(a string) func(w *world) []byte {
		return segmentFrame(func(w *world) segment {
			s := w.syn(1000)
			s.from = netip.MustParseAddrPort(a)
			return s
		})
	}
	options := func(o []layers.IPv4Option) func(w *world) []byte {
		return segmentFrame(func(w *world) segment { s := w.syn(1000); s.ipOptions = o; return s })
	}
	badOption := func(length byte) func(w *world) []byte {
		return func(w *world) []byte {
			f := options(routedBy(131, router...))(w)
			f[35] = length // of the first option
			f[24], f[25] = 0, 0
			set16(24, ^fold16(sum16(0, f[14:14+int(f[14]&15)*4])))(f)
			return f
		}
	}
	withData := func(n int) func(w *world) []byte {
		return segmentFrame(func(w *world) segment { s := w.syn(1000); s.payload = make([]byte, n); return s })
	}
	damaged := func(at int) func(w *world) []byte {
		return with(withData(1001), func(b []byte) { b[at] ^= 0x10 })
	}
	for _, c := range []struct {
		name, counter string
		frame         func(w *world) []byte
	}{
		{"damaged port", "bad_checksum", with(synFrame, func(b []byte) { b[35] ^= 1 })},
		{"damaged option", "bad_checksum", with(synFrame, func(b []byte) { b[60] ^= 1 })},
		{"damaged byte 500", "bad_checksum", damaged(500)},
		{"damaged byte 1000", "bad_checksum", damaged(1000)},
		{"damaged last byte", "bad_checksum", damaged(74 + 1000)},
		{"checksum 0", "bad_checksum", with(synFrame, set16(50, 0))},
		{"from 0.0.0.0", "bad_source", from("0.0.0.0:4000")},
		{"from 0.1.2.3", "bad_source", from("0.1.2.3:4000")},
		{"from 127.0.0.1", "bad_source", from("127.0.0.1:4000")},
		{"from 127.255.0.1", "bad_source", from("127.255.0.1:4000")},
		{"from 224.0.0.1", "bad_source", from("224.0.0.1:4000")},
		{"from 239.255.255.255", "bad_source", from("239.255.255.255:4000")},
		{"from 255.255.255.255", "bad_source", from("255.255.255.255:4000")},
		{"from 240.0.0.1", "bad_source", from("240.0.0.1:4000")},
		{"wrong IP checksum", "bad_checksum", with(synFrame, func(b []byte) { b[24] ^= 0x55 })},
		{"option of length 1, then a source route", "bad_source", badOption(1)},
		{"option beyond the header, then a source route", "bad_source", badOption(13)},
		{"from itself", "bad_source", from("10.46.100.5:80")},
		{"from its address", "bad_source", from("10.46.100.5:4000")},
		{"from another service address", "bad_source", from("10.46.100.6:4000")},
		{"loose source route", "bad_source", options(routedBy(131))},
		{"strict source route", "bad_source", options(routedBy(137))},
		{"source route after another option", "bad_source", options(routedBy(131, router...))},
		{"longer than a parked SYN may be", "too_long", withData(1463)},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, on := range []program{onXDP, onNIC, onLocal, onPod2} {
				w := all.in(t)
				cold(w)
				w.service(netip.MustParseAddrPort("10.46.100.6:80"), 100, 100)
				drop := uint32(tcxDrop)
				if on == onXDP {
					drop = xdpDrop
				}
				w.wantRun(on, c.frame(w), drop)
				w.wantParked(0, 0)
				if n := w.g.ServiceCounters(vip); n != (ServiceCounters{}) || w.g.ServiceState(vip) != Cold {
					t.Errorf("%v: %+v, state %d; want a cold service", on, n, w.g.ServiceState(vip))
				}
				if got, want := fmt.Sprint(w.counted()), fmt.Sprint(map[string]uint64{c.counter: 1}); got != want {
					t.Errorf("%v: counted %v, want %v", on, got, want)
				}
			}
		})
	}
}

// The lengths are those at which the sum is split or padded.
func TestRightChecksumsAreRecognized(t *testing.T) {
	all := newWorld(t, nil)
	for _, on := range []program{onXDP, onNIC} {
		for _, n := range []int{0, 1, 2, 3, 471, 472, 473, 983, 984, 985, 1441, 1442, 1460, 1461, 1462} {
			for _, ipOptions := range [][]layers.IPv4Option{nil, router} {
				for _, partial := range []bool{false, true} {
					w := all.in(t)
					cold(w)
					s := w.syn(1000)
					s.payload, s.ipOptions, s.padding = bytes.Repeat([]byte{0xff, 0x7f, 3}, n)[:n], ipOptions, 2
					s.partial = partial
					f := s.frame()
					w.run(on, f)
					if len(f)-2 > 1536 {
						continue
					}
					if w.g.ServiceState(vip) != Waking || len(w.counted()) > 0 {
						t.Errorf("%v: %d bytes of data, IP options %v, partial %v: state %d, counted %v", on, n, ipOptions,
							partial, w.g.ServiceState(vip), w.counted())
					}
				}
			}
		}
	}
}

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
