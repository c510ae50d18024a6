// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// Addresses that vip's service gets.
var (
	otherPort = netip.MustParseAddrPort("10.46.100.5:81")
	otherVIP  = netip.MustParseAddrPort("10.46.100.7:81")
	outside   = netip.MustParseAddrPort("10.46.140.1:82") // outside the service ranges
)

// conversation is a connection to a service, of which both ends are at hand.
type conversation struct {
	client *net.TCPConn
	server net.Conn
}

// converse connects to a service address from a network namespace.
func converse(t *testing.T, from string, to netip.AddrPort, accepted <-chan net.Conn) conversation {
	t.Helper()
	c, err := dial(from, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return conversation{c, <-accepted}
}

// accepting starts a server in a network namespace that leaves its connections to the test.
func accepting(t *testing.T, ns string, at netip.AddrPort) <-chan net.Conn {
	accepted, over := make(chan net.Conn), make(chan struct{})
	t.Cleanup(func() { close(over) })
	serveIn(t, ns, at, func(c net.Conn) {
		accepted <- c
		<-over
	})
	return accepted
}

// speak sends some bytes in both directions.
func (c conversation) speak() error {
	for _, way := range []struct{ from, to net.Conn }{{c.client, c.server}, {c.server, c.client}} {
		deadline := time.Now().Add(20 * time.Second)
		got := make([]byte, 5)
		_, err := way.from.Write([]byte("hello"))
		err = errors.Join(err, way.to.SetReadDeadline(deadline))
		if err == nil {
			_, err = io.ReadFull(way.to, got)
		}
		if err != nil {
			return fmt.Errorf("from %v to %v: %w", way.from.LocalAddr(), way.to.LocalAddr(), err)
		}
	}
	return nil
}

// ended reports whether both ends have got a RST.
func (c conversation) ended() error {
	for _, end := range []net.Conn{c.client, c.server} {
		err := end.SetReadDeadline(time.Now().Add(20 * time.Second))
		if err == nil {
			_, err = end.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			return fmt.Errorf("%v: %v, want a reset", end.LocalAddr(), err)
		}
	}
	return nil
}

// refused checks that a service address refuses connections.
func refused(t *testing.T, from string, to netip.AddrPort) {
	t.Helper()
	c, err := dial(from, to)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting from %q to %v: %v", from, to, err)
	}
}

// in returns a time from now.
func in(d time.Duration) monotime.Time { return monotime.Now().Add(d) }

// Connections outlast a change of their service's address, wherever their client is and whatever part of the address
// changes. At the end both sides learn of it, even those that only wait.
func TestConnectionsGoOnAtAnAddressThatTheirServiceHasLeft(t *testing.T) {
	for _, to := range []netip.AddrPort{otherPort, otherVIP, outside} {
		t.Run(to.String(), func(t *testing.T) {
			n := newNetwork(t, XDPNative, 1500)
			n.service()
			n.addPod(vip, 1)
			_, err := n.g.Serve(vip, 1)
			n.must(err)
			sh(t, "ip -n client route replace %v dev eth0", to.Addr())
			accepted := accepting(t, podNS(1), podAt[1])
			var before, after []conversation
			from := []string{"client", "", podNS(2)}
			for _, ns := range from {
				before = append(before, converse(t, ns, vip, accepted))
			}
			n.must(n.g.MoveService(vip, to, in(time.Minute)))
			for _, ns := range from {
				refused(t, ns, vip)
				after = append(after, converse(t, ns, to, accepted))
			}
			for _, c := range append(before, after...) {
				n.must(c.speak())
			}
			if c, err := n.g.PodCounters(to, 1); err != nil || c.Open != 6 {
				t.Errorf("%d flows count for the pod, want 6: %v", c.Open, err)
			}

			// The next process finds all of it.
			n.must(n.g.Close())
			n.open()
			if left := n.g.Left(to); len(left) != 1 || left[0].Addr != vip || left[0].Until.Sub(monotime.Now()) <= 0 {
				t.Errorf("left %v", left)
			}
			for _, c := range append(before, after...) {
				n.must(c.speak())
			}
			n.must(n.g.EndLeft(vip))
			for _, c := range before {
				n.must(c.ended())
			}
			for _, c := range after {
				n.must(c.speak())
			}
			if c, err := n.g.PodCounters(to, 1); err != nil || c.Open != 3 {
				t.Errorf("%d flows count for the pod, want 3: %v", c.Open, err)
			}
			w := &world{TB: t, g: n.g}
			if left := entries[uint32, gateLeftList](w, n.g.objs.LeftAddresses); left != 0 || len(n.g.Left(to)) != 0 {
				t.Errorf("%d lists of addresses remain", left)
			}
			if names := entries[gatePodName, uint32](w, n.g.objs.PodNames); names != 2 {
				t.Errorf("%d names of pods, want 2", names)
			}
		})
	}
}

// A service that returns to the address that it has left has its connections there as before.
func TestServiceReturnsToTheAddressThatItHasLeft(t *testing.T) {
	n := newNetwork(t, XDPNative, 1500)
	n.service()
	n.addPod(vip, 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	accepted := accepting(t, podNS(1), podAt[1])
	first := converse(t, "client", vip, accepted)
	n.must(n.g.MoveService(vip, otherVIP, in(time.Minute)))
	second := converse(t, "client", otherVIP, accepted)
	n.must(n.g.MoveService(otherVIP, vip, in(time.Minute)))
	third := converse(t, "client", vip, accepted)
	refused(t, "client", otherVIP)
	n.must(n.g.EndLeft(otherVIP))
	n.must(second.ended())
	n.must(first.speak())
	n.must(third.speak())
	// Another service takes its address: the old connections end instead of falling silent.
	if ended, err := n.g.EndFlows(vip); err != nil || ended != 2 {
		t.Errorf("%d flows ended: %v", ended, err)
	}
	n.must(first.ended())
	n.must(third.ended())
}

// A service changes its address more often than addresses are remembered: the flows at the first one end.
func TestFlowsAtTheEarliestOfManyAddressesEnd(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	at := vip
	for i := range maxLeft + 1 {
		to := netip.AddrPortFrom(vip.Addr(), uint16(90+i))
		w.must(w.g.MoveService(at, to, in(time.Minute)))
		at = to
	}
	if left := w.g.Left(at); len(left) != maxLeft || left[0].Addr.Port() != 90 {
		t.Errorf("left %v", left)
	}
	if _, open := w.flow(client, vip); open {
		t.Error("the flow at the first address goes on")
	}
	if err := w.g.MoveService(at, at, in(time.Minute)); err == nil {
		t.Error("moved to its own address")
	}
	w.must(w.g.RemovePod(at, 1))
	w.must(w.g.RemoveService(at))
	if n := len(w.g.services.left) + len(w.g.services.vips); n != 0 {
		t.Errorf("%d addresses remain", n)
	}
}

// A service whose new address has no room in the gate stays at its address, with its pods and flows.
func TestServiceStaysAtItsAddressIfTheGateHasNoRoom(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Services = 1 })
	connected(w)
	for _, to := range []netip.AddrPort{otherPort, otherVIP} {
		if err := w.g.MoveService(vip, to, in(time.Minute)); err == nil {
			t.Fatal("moved")
		}
		w.toPod(1, dataFrame(w), w.wantRun(onNIC, dataFrame(w), tcxRedirect))
		w.wantRun(onPod1, w.fromPod(1, "A", 5001, 1006).frame(), tcxRedirect)
		s := w.syn(9000)
		s.from = netip.AddrPortFrom(client.Addr(), 9000+uint16(to.Addr().As4()[3]))
		w.toPod(1, s.frame(), w.wantRun(onNIC, s.frame(), tcxRedirect))
	}
	if len(w.g.Left(vip)) != 0 || len(w.g.services.vips) != 1 {
		t.Errorf("left %v, VIPs %v", w.g.Left(vip), w.g.services.vips)
	}
}

// SYNs at an address that its service has left wake nothing and get a RST at once: those that were parked, and those
// that come later, also while the service sleeps.
func TestAddressThatItsServiceHasLeftParksNoSYN(t *testing.T) {
	w := newWorld(t, nil)
	cold(w)
	w.wantRun(onXDP, w.syn(1000).frame(), xdpDrop)
	w.wantParked(1, 1)
	w.must(w.g.MoveService(vip, otherPort, in(time.Minute)))
	if c := w.g.ServiceCounters(otherPort); c.ParkedNow != 0 || c.Refused != 1 {
		t.Errorf("counters %+v", c)
	}
	s := w.syn(2000)
	w.untouched(onXDP, s.frame())
	resetTo(w, s, w.wantRun(onNIC, s.frame(), tcxRedirect))
	if st := w.g.ServiceState(otherPort); st != Cold {
		t.Errorf("state %v", st)
	}
	s.to = otherPort
	w.wantRun(onXDP, s.frame(), xdpDrop)
	if c := w.g.ServiceCounters(otherPort); c.ParkedNow != 1 || c.Wakes != 2 {
		t.Errorf("counters %+v", c)
	}
}

// A client may use one port for connections to both addresses, but the pod has one address: the second connection
// waits for the end of the first.
func TestConnectionThatItsPodCouldNotTellFromAnotherWaits(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	w.must(w.g.MoveService(vip, otherPort, in(time.Minute)))
	s := w.syn(9000)
	s.to = otherPort
	w.wantRun(onNIC, s.frame(), tcxDrop)
	w.toPod(1, dataFrame(w), w.wantRun(onNIC, dataFrame(w), tcxRedirect))
	w.must(w.g.EndLeft(vip))
	w.toPod(1, s.frame(), w.wantRun(onNIC, s.frame(), tcxRedirect))
}

// The same, if the pod is on another node than its clients' edge node, and whichever node changes the address first.
func TestConnectionsBetweenNodesGoOnAtAnAddressThatTheirServiceHasLeft(t *testing.T) {
	for _, byEdge := range []bool{false, true} {
		t.Run(fmt.Sprintf("replies by the edge node: %v", byEdge), func(t *testing.T) {
			c := newClusterOf(t, 1500, func(c *Config) { c.RepliesByEdge = byEdge })
			c.podNet(c.home, 1, 1500)
			c.addPod(vip, c.home, 1)
			c.serve(vip, 1)
			accepted := accepting(t, podNS(1), podAt[1])
			nodes := []*node{c.edge, c.home}
			if byEdge {
				nodes = []*node{c.home, c.edge}
			}
			var before, after []conversation
			from := []string{"client", "edge"}
			for _, ns := range from {
				before = append(before, converse(t, ns, vip, accepted))
			}
			for _, n := range nodes {
				c.in(n, func() error { return n.g.MoveService(vip, otherPort, in(time.Minute)) })
				for _, old := range before {
					c.must(old.speak())
				}
			}
			for _, ns := range from {
				refused(t, ns, vip)
				after = append(after, converse(t, ns, otherPort, accepted))
			}
			c.wantOpenAt(otherPort, 1, 4)
			for _, all := range append(before, after...) {
				c.must(all.speak())
			}
			for _, n := range nodes {
				c.must(n.g.EndLeft(vip))
			}
			for _, old := range before {
				c.must(old.ended())
			}
			for _, now := range after {
				c.must(now.speak())
			}
			c.wantOpenAt(otherPort, 1, 2)
		})
	}
}
