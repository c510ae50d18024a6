// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/tcpserver"
)

// A client on another host and one on the node find the service cold and warm. The server sees their own addresses.
func TestClientsEverywhereKeepTheirAddress(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, service{name: "hello"})
	address := l.address(t, "hello")
	for _, c := range []struct {
		what string
		from *netlab.Namespace
	}{{"on another host", l.Client()}, {"on the node", l.Node}} {
		for _, state := range []string{"cold", "warm"} {
			a, err := e2e.Ask(c.from, address)
			if err != nil {
				t.Fatalf("client %s, %s: %v", c.what, state, err)
			}
			if a.ClientAddr() != c.from.Addr {
				t.Errorf("client %s, %s: the server sees %s, want %s", c.what, state, a.Client, c.from.Addr)
			}
		}
		l.sleep(t, "hello")
	}
}

// Also while both are cold.
func TestContainerIsAClientOfAnotherService(t *testing.T) {
	const hello = "10.46.100.77"
	l := newLab(t, 1)
	l.start(t, service{name: "hello", more: "address: " + hello},
		service{name: "proxy", env: map[string]string{"TARGET": hello + ":80"}})
	proxy := l.address(t, "proxy")
	for _, state := range []string{"cold", "warm", "cold behind warm"} {
		if state == "cold behind warm" {
			l.sleep(t, "hello")
		}
		a, err := e2e.ParseAnswer(e2e.Get(l.Client(), proxy, "/proxy"))
		if err != nil {
			t.Fatalf("%s: %v", state, err)
		}
		if pods := l.service(t, "proxy").Pods; len(pods) != 1 || a.ClientAddr() != pods[0].Addr {
			t.Errorf("%s: the server sees %s, want the address of the proxy's pod %+v", state, a.Client, pods)
		}
	}
	l.untilNoFlows(t, "hello")
}

// TCP and UDP servers of the node work while the gate is attached: also on the port of a service, in both directions,
// and with large packets.
func TestTrafficToOtherAddressesPassesTheGate(t *testing.T) {
	l := newLab(t, 1)
	for _, port := range []string{"80", "2222"} {
		listener, err := l.Node.Listen(t.Context(), "tcp", ":"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		tcpserver.Serve(listener, tcpserver.Echo)
	}
	l.start(t, service{name: "hello"})
	for _, port := range []uint16{80, 2222} {
		c := e2e.MustDial(t, l.Client(), netip.AddrPortFrom(l.Node.Addr, port).String())
		if err := echoes(c, 1<<20); err != nil {
			t.Errorf("the node's own server at port %d: %v", port, err)
		}
		c.Close()
	}
	if err := l.udpEcho(t); err != nil {
		t.Errorf("UDP: %v", err)
	}
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
}

// echoes sends n bytes and expects them back.
func echoes(c *net.TCPConn, n int) error {
	want := bytes.Repeat([]byte("0123456789abcdef"), n/16)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		if err == nil {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes came back, not the %d that were sent", len(got), len(want))
	}
	return nil
}

// udpEcho sends a datagram to the node and expects it back.
func (l *lab) udpEcho(t *testing.T) error {
	t.Helper()
	var server net.PacketConn
	err := l.Node.Do(func() (err error) {
		server, err = net.ListenPacket("udp4", ":80")
		return err
	})
	if err != nil {
		return err
	}
	defer server.Close()
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buf[:n], from)
		}
	}()
	c, err := l.Client().Dialer().Dial("udp", netip.AddrPortFrom(l.Node.Addr, 80).String())
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(e2e.Patience)); err != nil {
		return err
	}
	want := bytes.Repeat([]byte("x"), 1400)
	if _, err := c.Write(want); err != nil {
		return err
	}
	got := make([]byte, 2048)
	n, err := c.Read(got)
	if err == nil && !bytes.Equal(got[:n], want) {
		err = fmt.Errorf("%d bytes came back", n)
	}
	return err
}
