// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

// localDiag returns a sockDiag for the network namespace of the test.
func localDiag(t testing.TB) *sockDiag {
	t.Helper()
	ns, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if lo, err := netlink.LinkByName("lo"); err != nil {
		t.Fatal(err)
	} else if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	d, err := newSockDiag(ns)
	if err != nil {
		need.Unmet(t, "needs sock_diag in the kernel: %v", err)
	}
	t.Cleanup(d.close)
	return d
}

func TestSockDiagFindsSocketsThatListenOnAnAddress(t *testing.T) {
	d := localDiag(t)
	listens := func(addr string, port uint16) bool {
		t.Helper()
		yes, err := d.hasListener(netip.AddrPortFrom(netip.MustParseAddr(addr), port))
		if err != nil {
			t.Fatal(err)
		}
		return yes
	}
	listen := func(network, address string, only6 bool) (l net.Listener, port uint16) {
		c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				if only6 {
					_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
				}
			})
		}}
		l, err := c.Listen(context.Background(), network, address)
		if err != nil {
			need.Unmet(t, "needs IPv6: %v", err)
		}
		t.Cleanup(func() { l.Close() })
		return l, netip.MustParseAddrPort(l.Addr().String()).Port()
	}
	for _, c := range []struct {
		name, network, address string
		only6, one, two        bool // whether a socket listens on 127.0.0.1 and on 127.0.0.2
	}{
		{"one address", "tcp4", "127.0.0.1:0", false, true, false},
		{"all addresses", "tcp4", "0.0.0.0:0", false, true, true},
		{"IPv6 and IPv4", "tcp", "[::]:0", false, true, true},
		{"IPv6 only", "tcp6", "[::]:0", true, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, port := listen(c.network, c.address, c.only6)
			if one, two := listens("127.0.0.1", port), listens("127.0.0.2", port); one != c.one || two != c.two {
				t.Errorf("a socket listens on 127.0.0.1: %t, on 127.0.0.2: %t", one, two)
			}
			if c.one { // the socket of a connection does not count
				conn, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			l.Close()
			if listens("127.0.0.1", port) {
				t.Error("a closed socket still listens")
			}
		})
	}
}

func BenchmarkSockDiag(b *testing.B) {
	d := localDiag(b)
	for b.Loop() {
		if _, err := d.hasListener(netip.MustParseAddrPort("127.0.0.1:1")); err != nil {
			b.Fatal(err)
		}
	}
}

// Connections of others to the same port do not count.
func TestSockDiagCountsConnectionsByTheirPeer(t *testing.T) {
	d := localDiag(t)
	for _, network := range []string{"tcp4", "tcp"} { // the second has a dual-stack socket
		l, err := net.Listen(network, ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.2"} {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			c, err := dialer.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer accepted.Close()
		}
		for peer, want := range map[string]uint32{"127.0.0.2": 2, "127.0.0.3": 1, "127.0.0.4": 0} {
			n, err := d.countOpen(uint16(port), func(a netip.Addr) bool { return a == netip.MustParseAddr(peer) })
			if err != nil || n != want {
				t.Errorf("%s: %d connections from %s, %v; want %d", network, n, peer, err, want)
			}
		}
	}
}
