// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// One client that an API server names leaves places for others behind the same API server, and an address that claims
// to be many clients leaves places for other addresses.
func TestOneClientDoesNotTakeAllTunnels(t *testing.T) {
	l := newLimits()
	from := func(peer, client string) origin {
		r := httptest.NewRequest(http.MethodGet, Path, nil)
		r.RemoteAddr = peer
		if client != "" {
			r.Header.Set(forwardedFor, client)
		}
		return originOf(r)
	}
	take := func(peer string, client func(int) string) (n int) {
		for i := range 2 * maxTunnels {
			if l.take(from(peer, client(i))) {
				n++
			}
		}
		return n
	}
	if n := take("192.0.2.1:5", func(i int) string { return fmt.Sprintf("10.0.0.%d, 198.51.100.7", i%250) }); n !=
		maxClientTunnels {
		t.Errorf("one client has %d tunnels, want %d", n, maxClientTunnels)
	}
	if !l.take(from("192.0.2.1:5", "198.51.100.8")) {
		t.Error("another client of the same API server has none")
	}
	invented := func(i int) string { return fmt.Sprintf("10.9.%d.%d", i/250, i%250) }
	if n := take("10.1.0.9:5", invented); n != maxPeerTunnels {
		t.Errorf("one address has %d tunnels, want %d", n, maxPeerTunnels)
	}
	if !l.take(from("192.0.2.1:5", "198.51.100.9")) {
		t.Error("another client has none")
	}
	l.give(from("10.1.0.9:5", "10.9.0.0"))
	if !l.take(from("10.1.0.9:5", "10.9.0.0")) || l.take(from("10.1.0.9:5", "10.9.0.0")) {
		t.Error("a tunnel that has ended leaves no place, or two")
	}
}

func TestOriginOfATunnel(t *testing.T) {
	for _, c := range []struct{ remote, client, peer string }{
		{origin{}.String(), "invalid IP", "invalid IP"},
		{"192.0.2.1:5", "192.0.2.1", "192.0.2.1"},
		{"198.51.100.7 by 192.0.2.1", "198.51.100.7", "192.0.2.1"},
	} {
		if client, peer := Origin(c.remote); client.String() != c.client || peer.String() != c.peer {
			t.Errorf("%s: %s by %s, want %s by %s", c.remote, client, peer, c.client, c.peer)
		}
	}
}

// A tunnel that is passed on to the leader is one of the same client there, and gives its place back on both.
func TestATunnelIsItsClientsAtTheLeader(t *testing.T) {
	serve := func(leader string) (*Server, string) {
		s := &Server{
			Leader: func(context.Context) (string, error) { return leader, nil }, Log: slog.New(slog.DiscardHandler),
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, l) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		return s, l.Addr().String()
	}
	leader, at := serve("")
	follower, through := serve(at)
	conn, err := net.Dial("tcp", through)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := http.NewRequest(http.MethodGet, "http://"+through+Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ask(r.Header)
	r.Header.Set(forwardedFor, "203.0.113.9, 198.51.100.7")
	if err := r.Write(conn); err != nil {
		t.Fatal(err)
	}
	end, err := leader.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client, peer := Origin(end.RemoteAddr().String())
	if client.String() != "198.51.100.7" || peer.String() != "127.0.0.1" {
		t.Errorf("the leader has a tunnel of %s by %s", client, peer)
	}
	in := bufio.NewReader(conn)
	if res, err := http.ReadResponse(in, r); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", res, err)
	}
	end.Close()
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Error(err)
	}
	conn.Close()
	for _, s := range []*Server{leader, follower} {
		for open := 1; open > 0; time.Sleep(time.Millisecond) { // the test ends by its time limit if one stays
			s.mu.Lock()
			open = len(s.open)
			s.mu.Unlock()
		}
		for i := range maxClientTunnels {
			if !s.limits.take(origin{client, peer}) {
				t.Fatalf("only %d places are left", i)
			}
		}
	}
}
