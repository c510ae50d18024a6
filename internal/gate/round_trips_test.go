// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"wangell.loutres.me/test/testutil/netlab"
)

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
