// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"wangell.loutres.me/internal/decide/sources"
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

// stolen is an address that the node routes elsewhere than to those who claim it.
const stolen = "192.0.2.77"

// claim gives a network namespace the stolen address.
func (n *network) claim(ns string) {
	n.Helper()
	sh(n.T, "ip -n %s addr add %s/32 dev lo", ns, stolen)
}

// tryAs connects to a service from a network namespace with a source address, or the usual one, and exchanges data.
func tryAs(ns, source string, to netip.AddrPort) error {
	var c net.Conn
	err := inNamespace(ns, func() (err error) {
		d := net.Dialer{Timeout: 2 * time.Second}
		if source != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
		}
		c, err = d.Dial("tcp4", to.String())
		return err
	})
	if err != nil {
		return err
	}
	return exchange(c.(*net.TCPConn), 1000)
}

// A host of the node's link, or a pod, that claims an allowed address gets no connection: the pod's SYN-ACK goes where
// the node routes the address. Those whose address it is connect.
func TestForgedSourcesGetNoConnection(t *testing.T) {
	for _, mode := range []XDPMode{XDPOff, XDPNative} {
		for _, state := range []string{"warm", "cold"} {
			t.Run(fmt.Sprintf("xdp %s, %s", mode, state), func(t *testing.T) {
				n := newNetwork(t, mode, 1500)
				sh(t, "ip route add 192.0.2.0/24 dev pod1; ip route add %v dev pod2", podAt[2].Addr()) // removed with the devices
				n.service()
				_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Restricted: true,
					Sources: []sources.Rule{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Allow: true},
						{Prefix: netip.PrefixFrom(client.Addr(), 32), Allow: true},
						{Prefix: netip.PrefixFrom(podAt[2].Addr(), 32), Allow: true}}})
				n.must(err)
				n.addPod(vip, 1)
				from := echo(n, podNS(1), podAt[1])
				serve := func() {
					_, err := n.g.Serve(vip, 1)
					n.must(err)
				}
				if state == "warm" {
					serve()
				}
				n.claim("client")
				n.claim("pod2")
				first := make(chan error, 1)
				go func() { first <- tryAs("client", stolen, vip) }()
				if state == "cold" {
					n.ev.await(t, EventWake, 1)
					serve()
				}
				if err := <-first; err == nil {
					t.Error("a host of the link connected with an address that is not its own")
				}
				if err := tryAs("pod2", stolen, vip); err == nil {
					t.Error("a pod connected with an address that is not its own")
				}
				select {
				case a := <-from:
					t.Errorf("the pod saw %v", a)
				default:
				}
				for _, ns := range []string{"client", "pod2"} {
					if err := <-visit(ns, vip, 1<<20); err != nil {
						t.Errorf("%s with its own address: %v; gate: %v", ns, err, counted(t, n.g))
					}
				}
			})
		}
	}
}

// Nobody proves an address that is not theirs.
func TestForgedSourcesProveNothing(t *testing.T) {
	for _, mode := range []XDPMode{XDPOff, XDPNative} {
		t.Run(string(mode), func(t *testing.T) {
			n := newNetwork(t, mode, 1500)
			sh(t, "ip route add 192.0.2.0/24 dev pod1")
			n.service()
			_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Proof: ProofAlways})
			n.must(err)
			for _, ns := range []string{"client", "pod2"} {
				n.claim(ns)
				if err := tryAs(ns, stolen, vip); err == nil {
					t.Errorf("%s connected", ns)
				}
			}
			if c := counted(t, n.g); n.g.ServiceState(vip) != Cold || c["challenges"] == 0 || c["proven"] != 0 {
				t.Errorf("state %d, counted %v", n.g.ServiceState(vip), c)
			}
			done := visit("client", vip, 1000)
			n.ev.await(t, EventWake, 1)
			n.addPod(vip, 1)
			echo(n, podNS(1), podAt[1])
			_, err = n.g.Serve(vip, 1)
			n.must(err)
			if err := <-done; err != nil {
				t.Errorf("a client with its own address: %v; gate: %v", err, counted(t, n.g))
			}
		})
	}
}
