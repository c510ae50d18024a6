// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/sources"
)

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
