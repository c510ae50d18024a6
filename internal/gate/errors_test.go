// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// insidePod is the address of a router in pod 1.
var insidePod = netip.MustParseAddr("10.99.1.1")

// errorFromPod is an ICMP error of a router in pod 1 about a packet that exceeds an MTU of 1400, to the packet's
// sender.
func (w *world) errorFromPod(about segment) []byte {
	s := w.fromPod(1, "A", 0, 0)
	return serialize(&layers.Ethernet{SrcMAC: s.src, DstMAC: s.dst, EthernetType: layers.EthernetTypeIPv4},
		ip4(insidePod, about.from.Addr(), layers.IPProtocolICMPv4),
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: 1400},
		gopacket.Payload(about.frame()[ethernetHeader:][:28]))
}

// asReceived returns a client's segment as pod 1 sees it.
func (w *world) asReceived(s segment) segment {
	s.to = podAt[1]
	return s
}

// clientData is data of the client, as it sends it.
func clientData(w *world) segment { return w.fromClient("PA", 1001, 5001, make([]byte, 100)...) }

// errorFor checks that an ICMP error of pod 1 was translated: it comes from vip, and quotes the segment as it was sent.
func errorFor(w *world, about segment, in, out []byte) {
	w.Helper()
	ip := decode(w, out).NetworkLayer().(*layers.IPv4)
	if !ip.SrcIP.Equal(vip.Addr().AsSlice()) || !ip.DstIP.Equal(about.from.Addr().AsSlice()) ||
		fold16(sum16(0, out[14:34])) != 0xffff {
		w.Errorf("not from the service to the client:\n%v", dump(out))
	}
	if want := about.frame()[ethernetHeader:][:24]; !bytes.Equal(out[42:66], want) {
		w.Errorf("it quotes %x, want %x", out[42:66], want)
	}
	if fold16(sum16(0, out[34:])) != 0xffff {
		w.Errorf("a wrong checksum: %x", out[34:])
	}
	if !bytes.Equal(out[34:36], in[34:36]) || !bytes.Equal(out[38:42], in[38:42]) {
		w.Errorf("the message has changed: %x, was %x", out[34:42], in[34:42])
	}
}

func TestICMPErrorsOfPodsReachTheirClients(t *testing.T) {
	all := newWorld(t, nil)
	t.Run("outside", func(t *testing.T) {
		w := all.in(t)
		connected(w)
		w.before = w.counters()
		in := w.errorFromPod(w.asReceived(clientData(w)))
		out := w.wantRun(onPod1, in, tcxRedirect)
		errorFor(w, clientData(w), in, out)
		if !bytes.Equal(out[:6], clientMAC) {
			t.Errorf("sent to %x", out[:6])
		}
		if got := w.counted()["icmp_errors"]; got != 1 {
			t.Errorf("%d counted", got)
		}
	})
	t.Run("about a SYN", func(t *testing.T) {
		w := all.in(t)
		w.warm(vip, 1)
		w.wantRun(onNIC, synFrame(w), tcxRedirect)
		in := w.errorFromPod(w.asReceived(w.syn(1000)))
		errorFor(w, w.syn(1000), in, w.wantRun(onPod1, in, tcxRedirect))
	})
	t.Run("on this node", func(t *testing.T) {
		w := all.in(t)
		w.warm(vip, 1)
		w.wantRun(onLocal, synFrame(w), tcxRedirect)
		in := w.errorFromPod(w.asReceived(w.syn(1000)))
		out := w.wantRun(onPod1, in, tcxRedirect)
		errorFor(w, w.syn(1000), in, out)
	})
	received := func(w *world) []byte { return w.errorFromPod(w.asReceived(clientData(w))) }
	for name, frame := range map[string]func(w *world) []byte{
		"no flow":       func(w *world) []byte { return w.errorFromPod(w.asReceived(w.syn(1).fromOther(1, 1))) },
		"another port":  func(w *world) []byte { s := clientData(w); s.to = foreign; return w.errorFromPod(s) },
		"echo request":  with(received, func(b []byte) { b[34] = 8 }),
		"about UDP":     with(received, func(b []byte) { b[51] = 17 }),
		"to a stranger": with(received, func(b []byte) { b[33]++ }),
	} {
		t.Run(name, func(t *testing.T) {
			w := all.in(t)
			connected(w)
			w.untouched(onPod1, frame(w))
		})
	}
	t.Run("of another pod", func(t *testing.T) {
		w := all.in(t)
		connected(w)
		w.untouched(onPod2, w.errorFromPod(w.asReceived(clientData(w))))
	})
}

// The home node translates the error. It goes straight to the client, as data does, or through the edge node.
func TestICMPErrorsOfPodsReachClientsOfOtherNodes(t *testing.T) {
	all := newRemoteWorld(t, nil)
	t.Run("home node, client outside", func(t *testing.T) {
		w := all.in(t)
		w.warm(vip, 1)
		w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), tcxRedirect)
		in := w.errorFromPod(w.asReceived(w.syn(1000)))
		errorFor(w, w.syn(1000), in, w.wantRun(onPod1, in, tcxRedirect))
	})
	t.Run("home node, client on the edge node", func(t *testing.T) {
		w := all.in(t)
		w.warm(vip, 1)
		w.wantRun(onNIC, w.wrap(otherNode, toPodType, inside, 1, synFrame(w)), tcxRedirect)
		in := w.errorFromPod(w.asReceived(w.syn(1000)))
		errorFor(w, w.syn(1000), in, w.unwrap(w.wantRun(onPod1, in, tcxRedirect), toClientType, 0, 1, in))
	})
	t.Run("edge node", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.wantRun(onNIC, synFrame(w), tcxRedirect)
		about := w.syn(1000)
		f := w.errorFromPod(about) // as the home node has translated it
		copy(f[26:30], vip.Addr().AsSlice())
		binary.BigEndian.PutUint16(f[24:], 0)
		binary.BigEndian.PutUint16(f[24:], ^fold16(sum16(0, f[14:34])))
		out := w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, f), tcxRedirect)
		errorFor(w, about, f, out)
		if !bytes.Equal(out[:6], clientMAC) {
			t.Errorf("sent to %x", out[:6])
		}
		other := w.wrap(otherNode, toClientType, 0, 1, w.errorFromPod(w.syn(1000).fromOther(1, 1)))
		w.wantRun(onNIC, other, tcxDrop)
	})
}

// A pod forwards its port to what runs behind it, over a link with a smaller MTU: its client sends smaller segments.
func TestPathMTUInsideAPodReachesClients(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	newNamespace(t, "inner")
	sh(t, `ip -n pod1 link add in0 mtu 1300 type veth peer name eth0 netns inner
		ip -n pod1 addr add %[1]v/24 dev in0; ip -n pod1 link set in0 up
		ip -n inner addr add 10.99.1.2/24 dev eth0; ip -n inner link set eth0 mtu 1500 up
		ip -n inner route add default via %[1]v advmss 1460
		ip netns exec pod1 sysctl -qw net.ipv4.ip_forward=1
		ip netns exec pod1 nft 'table ip nat {
			chain pre { type nat hook prerouting priority dstnat;
				ip daddr %[2]v tcp dport %[3]d dnat to 10.99.1.2:%[3]d
			}
		}'`, insidePod, podAt[1].Addr(), podAt[1].Port())
	n.service()
	echo(n, "inner", netip.AddrPortFrom(netip.MustParseAddr("10.99.1.2"), podAt[1].Port()))
	n.addPod(vip, 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	c, err := dial("client", vip)
	n.must(err)
	n.must(exchange(c, 1<<20))
	if got := counted(t, n.g); got["icmp_errors"] == 0 {
		t.Errorf("no ICMP error reached the client: %v", got)
	}
	if r := sh(t, "ip -n client route get %v", vip.Addr()); !strings.Contains(r, "mtu 1300") {
		t.Errorf("the client's route to the service: %s", r)
	}
}
