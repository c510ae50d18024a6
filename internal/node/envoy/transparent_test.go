// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/freeport"
)

// clientAt returns a client whose connections all come from an address and port.
func clientAt(t *testing.T, http2 bool, from netip.AddrPort) *http.Client {
	c := client(t, http2)
	tr := c.Transport.(*http.Transport)
	tr.DialContext = (&net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(from),
		Control: func(_, _ string, raw syscall.RawConn) (err error) {
			_ = raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			})
			return err
		},
	}).DialContext
	return c
}

// Clients with the same port are told apart, and a connection to a pod is not shared.
func TestPodsSeeTheAddressesOfClients(t *testing.T) {
	t.Parallel()
	for name, protocol := range map[string]Protocol{"Auto": Auto, "HTTP1": HTTP1, "HTTP2": HTTP2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := serve(t)
			about := Proxy{Addr: loopback, Netns: "/ns", Created: created, Transparent: true}
			r.startAs(about)
			seen := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) }
			a, b := newHTTPPod(t, seen), newHTTPPod(t, seen)
			s := shop(t, a.at, b.at)
			s.Protocol, s.Transparent = protocol, true
			r.set(s)
			if p := <-r.connected; p != about {
				t.Errorf("connected: %+v", p)
			}
			get(t, client(t, protocol == HTTP2), s.at())
			port := freeport.Reserve(t).Port()
			var clients []*http.Client
			var from []netip.AddrPort
			for i := range 4 {
				at := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", 2+i)), port)
				from = append(from, at)
				clients = append(clients, clientAt(t, protocol == HTTP2 || protocol == Auto && i%2 == 1, at))
			}
			for range 20 {
				for i, c := range clients {
					code, body := get(t, c, s.at())
					got, err := netip.ParseAddrPort(body)
					if code != http.StatusOK || err != nil || got.Addr() != from[i].Addr() {
						t.Fatalf("client %v: %d, seen as %s", from[i], code, body)
					}
				}
			}
			if x, y := a.requests.Load(), b.requests.Load(); x < 20 || y < 20 {
				t.Errorf("the pods got %d and %d requests", x, y)
			}
			// The service address, as while no pod serves.
			s.Pods, s.Addr = nil, a.at
			r.set(s)
			for i, c := range clients {
				_, body := get(t, c, s.at())
				if got, err := netip.ParseAddrPort(body); err != nil || got.Addr() != from[i].Addr() {
					t.Errorf("client %v wakes the service from %s", from[i], body)
				}
			}
			if log := r.log.String(); log != "" {
				t.Errorf("log: %s", log)
			}
		})
	}
}

// It is the service at which clients connect that says so.
func TestPodsOfRevisionsSeeTheClientsOfTheServiceWithTraffic(t *testing.T) {
	t.Parallel()
	r := serve(t)
	r.startAs(Proxy{Addr: loopback, Netns: "/ns", Created: created, Transparent: true})
	seen := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) }
	s, v1, v2 := split(t, 50, 50), revision(t, "v1", newHTTPPod(t, seen).at), revision(t, "v2", newHTTPPod(t, seen).at)
	s.Transparent, v1.Transparent = true, true
	r.set(s, v1, v2)
	from := netip.MustParseAddrPort("127.0.0.2:0")
	for address, want := range map[netip.AddrPort]netip.Addr{
		s.at(): from.Addr(), v1.at(): from.Addr(), v2.at(): loopback,
	} {
		c := clientAt(t, false, from)
		for range 4 {
			if _, body := get(t, c, address); netip.MustParseAddrPort(body).Addr() != want {
				t.Errorf("at %v: seen as %s, want %v", address, body, want)
			}
		}
	}
}

// An Envoy that was started without the right serves the same service as usual.
func TestEnvoyWithoutTheRightKeepsItsAddress(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod := newHTTPPod(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) })
	s := shop(t, pod.at)
	s.Transparent = true
	r.set(s)
	from := netip.MustParseAddrPort("127.0.0.2:0")
	if _, body := get(t, clientAt(t, false, from), s.at()); netip.MustParseAddrPort(body).Addr() != loopback {
		t.Errorf("seen as %s, want %v", body, loopback)
	}
}
