// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/monotime"
)

// transparentFront makes the network of pod 2, which is that of the front, take all that reaches it for its own.
func transparentFront(n *network) {
	sh(n, `ip -n %[1]s rule add iif eth0 lookup 100; ip -n %[1]s route add local 0.0.0.0/0 dev lo table 100`, podNS(2))
}

// dialAs connects from a network namespace and an address that it need not have.
func dialAs(ns string, from, to netip.AddrPort) (c net.Conn, err error) {
	d := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: time.Minute,
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			return errors.Join(raw.Control(func(fd uintptr) {
				err = errors.Join(
					unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1),
					unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
			}), err)
		},
	}
	err = inNamespace(ns, func() (err error) { c, err = d.Dial("tcp4", to.String()); return err })
	return c, err
}

// telling listens in a network namespace and tells each client where it is seen.
func telling(n *network, ns string, at netip.AddrPort) {
	serveIn(n, ns, at, func(c net.Conn) {
		_, _ = io.WriteString(c, c.RemoteAddr().String())
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
}

// seenAs connects from the front's network and returns what the pod takes for its client.
func seenAs(n *network, from, to netip.AddrPort) string {
	n.Helper()
	c, err := dialAs(podNS(2), from, to)
	n.must(err)
	defer c.Close()
	n.must(c.SetDeadline(time.Now().Add(time.Minute)))
	seen, err := io.ReadAll(c)
	n.must(err)
	return string(seen)
}

func TestFrontConnectsToPodsFromItsClientsAddress(t *testing.T) {
	n := frontedNetwork(t)
	transparentFront(n)
	telling(n, podNS(1), podAt[1])
	answering(n, podNS(2), podAt[2], 'f')
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	for _, from := range []string{"203.0.113.7:2000", "203.0.113.8:2000", podAt[3].Addr().String() + ":2000"} {
		for _, to := range []netip.AddrPort{podAt[1], vip} {
			if got := seenAs(n, netip.MustParseAddrPort(from), to); got != from {
				t.Errorf("%v at %v is seen as %s", from, to, got)
			}
		}
	}
	if got := answerTo(n, podNS(1), vip); got != "f" {
		t.Errorf("the pod itself got %q at its service's address", got)
	}
	if c, err := dialAs(podNS(2), netip.AddrPortFrom(podAt[1].Addr(), 2000), podAt[1]); err == nil {
		c.Close()
		t.Error("the front has connected to a pod from its own address")
	} else if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connecting from the pod's own address: %v, want it to be refused at once", err)
	}
}

func TestFrontWakesAServiceFromItsClientsAddress(t *testing.T) {
	n := frontedNetwork(t)
	transparentFront(n)
	telling(n, podNS(1), podAt[1])
	answering(n, podNS(2), podAt[2], 'f')
	const client = "203.0.113.7:2000"
	seen := make(chan string, 1)
	go func() { seen <- seenAs(n, netip.MustParseAddrPort(client), vip) }()
	n.ev.await(t, EventWake, 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	if got := <-seen; got != client {
		t.Errorf("the pod has seen %s", got)
	}
}

// A pod could not tell the two connections apart.
func TestFrontIsRefusedAPortThatItsClientUsesWithThePod(t *testing.T) {
	n := frontedNetwork(t)
	transparentFront(n)
	n.g.DrainFront(vip, FrontID)
	telling(n, podNS(1), podAt[1])
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	var c *net.TCPConn
	n.must(inNamespace("client", func() (err error) {
		conn, err := net.Dial("tcp4", vip.String())
		if err == nil {
			c = conn.(*net.TCPConn)
		}
		return err
	}))
	defer c.Close()
	n.must(n.g.ServeFront(vip, FrontID))
	from := c.LocalAddr().(*net.TCPAddr).AddrPort()
	for _, to := range []netip.AddrPort{podAt[1], vip} {
		if stolen, err := dialAs(podNS(2), from, to); err == nil {
			stolen.Close()
			t.Errorf("connected to %v", to)
		} else if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%v: %v, want it to be refused at once", to, err)
		}
	}
	n.must(c.SetDeadline(time.Now().Add(time.Minute)))
	if got, err := io.ReadAll(c); err != nil || string(got) != from.String() {
		t.Errorf("the client's connection: %q, %v", got, err)
	}
}

// floodServices makes a gate take its services for flooded until the test ends.
func floodServices(t *testing.T, g *Gate) {
	t.Helper()
	for service := range g.cfg.Sizes.Services {
		if err := g.objs.Floods.Put(service, uint64(monotime.Now())+uint64(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
}

// What a pod answers to others than its clients, at its own address, looks like its answer to a SYN of the flood.
func TestFloodOfAServiceLeavesConnectionsToItsPodsOwnAddressesAlone(t *testing.T) {
	n := frontedNetwork(t)
	transparentFront(n)
	sh(n, "ip route replace %v/32 dev pod1", podAt[1].Addr())
	answering(n, podNS(2), podAt[2], 'f')
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	floodServices(t, n.g)
	own := netip.AddrPortFrom(podAt[2].Addr(), 0)
	for _, c := range []struct {
		name, ns string
		from     netip.AddrPort
	}{
		{"front", podNS(2), own}, {"front, as its client", podNS(2), netip.MustParseAddrPort("203.0.113.7:2000")},
		{"node", "", netip.AddrPort{}},
	} {
		connect := func() (net.Conn, error) {
			if c.from.IsValid() {
				return dialAs(c.ns, c.from, podAt[1])
			}
			return dial(c.ns, podAt[1])
		}
		if conn, err := connect(); err == nil {
			conn.Close()
			t.Errorf("%s: connected to a pod that does not listen", c.name)
		} else if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v, want the pod's refusal", c.name, err)
		}
		l := answering(n, podNS(1), podAt[1], 'p')
		conn, err := connect()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else {
			n.must(conn.SetDeadline(time.Now().Add(time.Minute)))
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			conn.Close()
		}
		n.must(l.Close())
	}
	if got := answerTo(n, "client", vip); got != "f" {
		t.Errorf("a client got %s during the flood", got)
	}
}
