// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/tcpserver"
)

// Addresses that the service of these tests gets.
var (
	otherPort = netip.MustParseAddrPort("10.46.100.5:81")
	otherVIP  = netip.MustParseAddrPort("10.46.100.6:81")
)

// echo starts a server in pod n that answers each byte with the same byte.
func (w *world) echo(n int) {
	in(w.t, fmt.Sprintf("pod%d", n), func() error {
		l, err := net.Listen("tcp4", ":8080")
		if err != nil {
			return err
		}
		w.t.Cleanup(func() { l.Close() })
		tcpserver.Serve(l, tcpserver.Echo)
		return nil
	})
}

// connect connects to a service address from a network namespace, or from the node itself if ns is empty.
func connect(ns string, to netip.AddrPort) (c net.Conn, err error) {
	d := func() error { c, err = net.DialTimeout("tcp4", to.String(), 30*time.Second); return err }
	if ns == "" {
		return c, d()
	}
	h, err := netns.GetFromName(ns)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return c, inNetns(h, d)
}

// open connects to a service address until the test ends.
func open(t *testing.T, ns string, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := connect(ns, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	echoes(t, c)
	return c
}

// echoes checks that a connection has an answer.
func echoes(t *testing.T, c net.Conn) {
	t.Helper()
	b := make([]byte, 1)
	_, err := c.Write([]byte("x"))
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(60 * time.Second))
	}
	if err == nil {
		_, err = io.ReadFull(c, b)
	}
	if err != nil {
		t.Errorf("from %v to %v: %v", c.LocalAddr(), c.RemoteAddr(), err)
	}
}

// isReset checks that a client that only waits gets a RST.
func isReset(t *testing.T, c net.Conn) {
	t.Helper()
	err := c.SetReadDeadline(time.Now().Add(60 * time.Second))
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("from %v to %v: %v, want a reset", c.LocalAddr(), c.RemoteAddr(), err)
	}
}

// table changes the table of services.
func (w *world) table(upserts []wire.Service, removals ...netip.AddrPort) {
	w.t.Helper()
	if err := w.server.UpdateServices(upserts, removals); err != nil {
		w.t.Fatal(err)
	}
}

// at returns the service of these tests with another address.
func at(a netip.AddrPort) wire.Service {
	s := hello(0)
	s.Addr, s.IdleSeconds = a, 3600
	return s
}

// flowsOf waits until the pod's home node reports a number of open flows.
func (w *world) flowsOf(service netip.AddrPort, flows uint32) {
	w.t.Helper()
	for {
		for _, p := range await[*wire.Stats](w).Pods {
			if p.Service == service && p.OpenFlows == flows {
				return
			}
		}
	}
}

func TestConnectionsOutlastAChangeOfTheirServicesAddress(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(1)
	w.echo(1)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	await[*wire.Listening](w)
	old := []net.Conn{open(t, clientNet, vip), open(t, "", vip)}

	w.send(&wire.Moved{From: vip, To: otherPort, DrainMillis: 3_600_000})
	w.table([]wire.Service{at(otherPort)}, vip)
	pod.State = wire.PodServing
	w.send(&wire.Backends{Service: otherPort, Generation: 2, Pods: []wire.Backend{pod}})
	for _, ns := range []string{clientNet, ""} {
		if _, err := connect(ns, vip); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connecting from %q to the former address: %v", ns, err)
		}
		open(t, ns, otherPort)
	}
	w.flowsOf(otherPort, 4) // those at both addresses
	for _, c := range old {
		echoes(t, c)
	}

	// The next daemon adopts the address, and ends it in time.
	w.stop()
	w.start()
	w.send(&wire.Backends{Service: otherPort, Generation: 3, Pods: []wire.Backend{pod}})
	for _, c := range old {
		echoes(t, c)
	}
	now := open(t, clientNet, otherPort)
	w.send(&wire.Moved{From: otherPort, To: otherVIP, DrainMillis: 1})
	w.table([]wire.Service{at(otherVIP)}, otherPort)
	w.send(&wire.Backends{Service: otherVIP, Generation: 4, Pods: []wire.Backend{pod}})
	isReset(t, now)
	for _, c := range old {
		echoes(t, c)
	}
	last := open(t, clientNet, otherVIP)
	w.flowsOf(otherVIP, 3)

	// Another service takes the address, and then that of the service itself: the connections there end at once.
	other := at(vip)
	other.Name = "default/other"
	w.table([]wire.Service{other})
	for _, c := range old {
		isReset(t, c)
	}
	echoes(t, last)
	other.Addr = otherVIP
	w.table([]wire.Service{other}, vip)
	isReset(t, last)
}

// Without word of the new address, as from a controller of an earlier version, connections end instead of falling
// silent.
func TestConnectionsOfAServiceThatIsRemovedAreReset(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(1)
	w.echo(1)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	await[*wire.Listening](w)
	c := open(t, clientNet, vip)
	w.table([]wire.Service{at(otherPort)}, vip)
	isReset(t, c)
}
