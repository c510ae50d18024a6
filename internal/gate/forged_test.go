// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"
)

// udpOfPod is the frame of a UDP packet of pod 2, whose IP header has 20 bytes and options.
func udpOfPod(w *world, to netip.AddrPort, options ...layers.IPv4Option) []byte {
	w.Helper()
	ip := ip4(podAt[2].Addr(), to.Addr(), layers.IPProtocolUDP)
	ip.Flags, ip.Options = 0, options
	udp := &layers.UDP{SrcPort: 50000, DstPort: layers.UDPPort(to.Port())}
	w.must(udp.SetNetworkLayerForChecksum(ip))
	return serialize(&layers.Ethernet{SrcMAC: podMAC[2], DstMAC: w.podLink[2].Attrs().HardwareAddr,
		EthernetType: layers.EthernetTypeIPv4}, ip, udp)
}

// What a pod sends to the port of the gates would reach them from its own node's address, if that masquerades it.
func TestPodsCannotSpeakToGates(t *testing.T) {
	w := newRemoteWorld(t, nil)
	gates := netip.AddrPortFrom(otherNode, encapPort)
	plain := udpOfPod(w, gates)
	fragment := func(f []byte, flags uint16) []byte {
		binary.BigEndian.PutUint16(f[20:], flags)
		return f
	}
	for name, c := range map[string]struct {
		frame   []byte
		dropped bool
	}{
		"to the gates' port of another node": {plain, true},
		"to that of this node":               {udpOfPod(w, netip.AddrPortFrom(thisNode, encapPort)), true},
		"with IP options":                    {udpOfPod(w, gates, router...), true},
		"first fragment":                     {fragment(udpOfPod(w, gates), 0x2000), true},
		"first fragment without the port":    {fragment(udpOfPod(w, gates), 0x2000)[:ethernetHeader+21], true},
		"later fragment":                     {fragment(udpOfPod(w, gates), 0x2001), false},
		"to another port of a node":          {udpOfPod(w, netip.AddrPortFrom(otherNode, 53)), false},
		"to no node":                         {udpOfPod(w, netip.AddrPortFrom(stranger, encapPort)), false},
	} {
		before := w.counters()["pods_to_gates"]
		verdict := tcxNext
		if c.dropped {
			verdict = tcxDrop
		}
		if got, _ := w.run(onPod2, c.frame); got != verdict {
			t.Errorf("%s: verdict %d, want %d", name, int32(got), int32(verdict))
		}
		if got := w.counters()["pods_to_gates"] - before; (got == 1) != c.dropped {
			t.Errorf("%s: %d counted", name, got)
		}
	}
}

func TestFlowClosesByAHomeNodesWordOnlyWithItsNumbers(t *testing.T) {
	all := newRemoteWorld(t, nil)
	for name, c := range map[string]struct {
		last segment
		open uint32
	}{
		"last RST":                     {segment{flags: "R", seq: 1001}, 0},
		"last ACK":                     {segment{flags: "A", seq: 1001, ack: 30001}, 0},
		"of data sent past this node":  {segment{flags: "A", seq: 1001, ack: 5001 + 64000}, 0},
		"RST far behind":               {segment{flags: "R", seq: 1<<32 + 1001 - 1<<21}, 1},
		"RST far ahead":                {segment{flags: "R", seq: 1001 + 1<<30}, 1},
		"ACK of what cannot have been": {segment{flags: "A", seq: 1001, ack: 5001 + 1<<30}, 1},
		"ACK of what is long past":     {segment{flags: "A", seq: 1001, ack: 1<<32 + 5001 - 1<<21}, 1},
	} {
		for kind, flag := range map[string]byte{"": 0, ", moved": moved} {
			w := all.in(t)
			w.remote()
			w.wantRun(onNIC, synFrame(w), tcxRedirect)
			reply := w.asSent(w.fromPod(1, "SA", 5000, 1001))
			reply.options = synOptions
			w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, reply.frame()), tcxRedirect)
			w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
			s := w.fromClient(c.last.flags, c.last.seq, c.last.ack)
			w.wantRun(onNIC, w.wrap(otherNode, closedType, flag, 1, s.frame()), tcxDrop)
			if o, h, n := w.counts(vip, 1); o != c.open || h != 0 || n != 1 {
				t.Errorf("%s%s: %d open, %d half-open, %d new; want %d open", name, kind, o, h, n, c.open)
			}
		}
	}
}
