// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// movingClient is a client with one connection, which is made to the Envoy that is at the address then.
func movingClient(t testing.TB, http2 bool, at *atomic.Pointer[netip.Addr]) *http.Client {
	c := client(t, http2)
	c.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, to string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(to)
		if err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp4", net.JoinHostPort(at.Load().String(), port))
	}
	return c
}

// As at an update of Envoy: requests go on, on connections that clients keep, while another Envoy takes over. They are
// POSTs, which nobody repeats.
func TestRetiredEnvoyLosesNoRequest(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod := newHTTPPod(t, ok)
	s := shop(t, pod.at)
	r.set(s)
	<-r.connected
	get(t, client(t, false), s.at())

	var at atomic.Pointer[netip.Addr]
	at.Store(&loopback)
	var clients sync.WaitGroup
	stop := make(chan struct{})
	var sent [4]atomic.Int64
	for i := range sent {
		c := movingClient(t, i%2 == 1, &at)
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n := sent[i].Add(1)
				body := fmt.Sprint(n)
				answer, err := c.Post(fmt.Sprintf("http://%s/", s.at()), "text/plain", strings.NewReader(body))
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				got, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if err != nil || answer.StatusCode != http.StatusOK || string(got) != body {
					t.Errorf("client %d: status %d, %q, %v", i, answer.StatusCode, got, err)
					return
				}
			}
		})
	}
	goOn := func() {
		t.Helper()
		for i := range sent {
			goal, begin := sent[i].Load()+50, time.Now()
			for ; sent[i].Load() < goal && !t.Failed(); time.Sleep(time.Millisecond) {
				if time.Since(begin) > 2*time.Minute {
					t.Fatalf("client %d has stopped", i)
				}
			}
		}
	}
	goOn()
	second := netip.MustParseAddr("127.0.0.2")
	r.start(second)
	<-r.connected
	listens(t, netip.AddrPortFrom(second, s.Port), true)
	goOn()
	at.Store(&second)
	r.server.Retire(loopback, true)
	listens(t, s.at(), false)
	goOn()
	// Back again, as when the younger one fails.
	r.server.Retire(loopback, false)
	listens(t, s.at(), true)
	at.Store(&loopback)
	r.server.Retire(second, true)
	listens(t, netip.AddrPortFrom(second, s.Port), false)
	goOn()
	close(stop)
	clients.Wait()
}

// listens waits until something listens at an address, or nothing does.
func listens(t testing.TB, at netip.AddrPort, want bool) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp4", at.String())
		if err == nil {
			c.Close()
		}
		if (err == nil) == want {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%v: %v after a minute", at, err)
		}
	}
}

func TestRetiredEnvoyAsksClientsToLeave(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod := newHTTPPod(t, ok)
	s := shop(t, pod.at)
	r.set(s)
	c := client(t, false)
	get(t, c, s.at())
	ask := func() (leave bool) {
		answer, err := c.Get(fmt.Sprintf("http://%s/", s.at()))
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.Close
	}
	if ask() {
		t.Error("a client is to leave for no reason")
	}
	r.server.Retire(loopback, true)
	for begin := time.Now(); !ask(); time.Sleep(time.Millisecond) { // on the connection that it has
		if time.Since(begin) > time.Minute {
			t.Fatal("no client is asked to leave")
		}
	}
	listens(t, s.at(), false)
}
