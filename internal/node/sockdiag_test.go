// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

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
		port, ports := l.Addr().(*net.TCPAddr).Port, map[netip.AddrPort]bool{}
		for _, from := range []string{"127.0.0.2", "127.0.0.3", "127.0.0.2"} {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			c, err := dialer.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ports[c.LocalAddr().(*net.TCPAddr).AddrPort()] = true
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer accepted.Close()
		}
		for peer, want := range map[string]uint32{"127.0.0.2": 2, "127.0.0.3": 1, "127.0.0.4": 0} {
			peers, err := d.openPeers(uint16(port))
			n := uint32(0)
			for _, p := range peers {
				if p.Addr() == netip.MustParseAddr(peer) && ports[p] {
					n++
				}
			}
			if err != nil || n != want {
				t.Errorf("%s: %d connections from %s, %v; want %d", network, n, peer, err, want)
			}
		}
	}
}

func TestServersOweWhatTheyHaveNotAnswered(t *testing.T) {
	const recent, unread = time.Second, time.Minute
	listener := socketState{state: tcpListen, port: 80}
	for name, c := range map[string]struct {
		all  []socketState
		want bool
	}{
		"nothing":                     {nil, false},
		"a server":                    {[]socketState{listener}, false},
		"a connection not accepted":   {[]socketState{{state: tcpListen, port: 80, queued: 1}}, true},
		"a connection without a word": {[]socketState{listener, {state: tcpEstablished, port: 80}}, false},
		"what was not read":           {[]socketState{listener, {state: tcpCloseWait, port: 80, queued: 7}}, true},
		"what has long lain unread": {[]socketState{listener,
			{state: tcpEstablished, port: 80, queued: 7, receivedAgo: 2 * unread, segmentAgo: 2 * unread}}, false},
		"an end not read": {[]socketState{listener,
			{state: tcpCloseWait, port: 80, queued: 1, receivedAgo: 2 * unread, segmentAgo: 10}}, true},
		"a handshake": {[]socketState{listener, {state: tcpSynReceived, port: 80}}, true},
		"a question": {[]socketState{listener,
			{state: tcpEstablished, port: 80, received: 5, answers: 1, receivedAgo: 10, answeredAgo: 20}}, true},
		"a question at the handshake": {[]socketState{listener,
			{state: tcpEstablished, port: 80, received: 5, receivedAgo: 10, answeredAgo: 10}}, true},
		"an answer": {[]socketState{listener,
			{state: tcpEstablished, port: 80, received: 5, answers: 1, receivedAgo: 20, answeredAgo: 10}}, false},
		"a question long ago": {[]socketState{listener,
			{state: tcpEstablished, port: 80, received: 5, receivedAgo: 2 * recent, answeredAgo: 3 * recent}}, false},
		"an answer to the pod": {[]socketState{listener,
			{state: tcpEstablished, port: 41000, received: 5, answers: 1, receivedAgo: 10, answeredAgo: 20}}, false},
	} {
		if got := owed(c.all, recent, unread); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

func TestClientsThatWaitForAnAnswerAreFound(t *testing.T) {
	const most = time.Minute
	listener := socketState{state: tcpListen, port: 80}
	client := netip.MustParseAddr("10.0.0.7")
	for name, c := range map[string]struct {
		all  []socketState
		want bool
	}{
		"nothing":                     {nil, false},
		"a server":                    {[]socketState{listener}, false},
		"a connection without a word": {[]socketState{listener, {state: tcpEstablished, port: 80, peer: client}}, false},
		"a question": {[]socketState{listener,
			{state: tcpEstablished, port: 80, peer: client, received: 5, answers: 1, receivedAgo: 10, answeredAgo: 20}}, true},
		"a question not read": {[]socketState{listener,
			{state: tcpEstablished, port: 80, peer: client, queued: 5, received: 5, answers: 1, receivedAgo: 10,
				answeredAgo: 20}}, true},
		"a question and an end": {[]socketState{listener,
			{state: tcpCloseWait, port: 80, peer: client, received: 5, answers: 1, receivedAgo: 10, answeredAgo: 20}}, true},
		"a question at the handshake": {[]socketState{listener,
			{state: tcpEstablished, port: 80, peer: client, received: 5, receivedAgo: 10, answeredAgo: 10}}, true},
		"an answer": {[]socketState{listener,
			{state: tcpEstablished, port: 80, peer: client, received: 5, answers: 1, receivedAgo: 20, answeredAgo: 10}}, false},
		"a question long ago": {[]socketState{listener,
			{state: tcpEstablished, port: 80, peer: client, received: 5, receivedAgo: 2 * most, answeredAgo: 3 * most}}, false},
		"a question of the pod": {[]socketState{listener,
			{state: tcpEstablished, port: 41000, peer: client, received: 5, answers: 1, receivedAgo: 10,
				answeredAgo: 20}}, false},
		"a question of the pod to itself": {[]socketState{listener, {state: tcpEstablished, port: 80,
			peer: netip.MustParseAddr("127.0.0.1"), received: 5, answers: 1, receivedAgo: 10, answeredAgo: 20}}, false},
	} {
		if got := unanswered(c.all, most); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// The kernel tells what a server has not accepted, not read and not answered yet.
func TestKernelTellsWhatAServerOwes(t *testing.T) {
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp": "[::]:0"} {
		t.Run(network, func(t *testing.T) { testOwes(t, network, address) })
	}
}

func testOwes(t *testing.T, network, address string) {
	diag := localDiag(t)
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	expect := func(step string, want bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			got, err := diag.owesAnswer(time.Hour, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %t, want %t", step, got, want)
			}
		}
	}
	expect("at first", false)
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(l.Addr().(*net.TCPAddr).Port))
	client, err := net.Dial("tcp4", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	expect("a connection waits", true)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	expect("it is accepted", false)
	write := func(c net.Conn) {
		t.Helper()
		if _, err := c.Write([]byte("word")); err != nil {
			t.Fatal(err)
		}
	}
	passed := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); !allAgo(t, diag, 2*kernelTick); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the kernel's clock stands still")
			}
		}
	}
	passed() // what follows is later by the kernel's clock as well
	write(client)
	expect("it is asked", true)
	if _, err := io.ReadFull(server, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	expect("it has read", true)
	passed()
	write(server)
	expect("it has answered", false)
}

// kernelTick is the coarsest resolution of the kernel's times, with CONFIG_HZ=100.
const kernelTick = 10 * time.Millisecond

// allAgo reports whether all that connections sent and received is at least that long ago by the kernel's clock.
func allAgo(t *testing.T, diag *sockDiag, ago time.Duration) bool {
	t.Helper()
	found, err := diag.list(1<<tcpEstablished, 0, 1<<(diagInfo-1))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found {
		if s, ok := parseSocket(m); ok && min(s.receivedAgo, s.segmentAgo, s.answeredAgo) < ago {
			return false
		}
	}
	return len(found) > 0
}
