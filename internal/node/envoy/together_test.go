// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// asking are clients that ask without a pause, with kept connections and new ones.
type asking struct {
	testing.TB
	answers atomic.Int64
	stop    context.CancelFunc
	clients sync.WaitGroup
}

// askOn starts clients. Their requests may fail only by refused connections, and only while Envoy has not listened yet.
func askOn(t testing.TB, s Service) *asking {
	at := s.at()
	ctx, stop := context.WithCancel(t.Context())
	a := &asking{TB: t, stop: stop}
	for i := range 4 {
		c := client(t, i%2 == 0 && s.Protocol != HTTP1)
		a.clients.Go(func() {
			for ctx.Err() == nil {
				if err := a.ask(c, at); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				if i > 1 {
					c.CloseIdleConnections()
				}
			}
		})
	}
	t.Cleanup(a.end)
	return a
}

func (a *asking) ask(c *http.Client, at netip.AddrPort) error {
	before := a.answers.Load() // another client may get the first answer before this one learns that it was refused
	answer, err := c.Get(fmt.Sprintf("http://%s/", at))
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) && before == 0 {
			time.Sleep(time.Millisecond)
			return nil
		}
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	a.answers.Add(1)
	return err
}

// more waits for further answers.
func (a *asking) more() {
	a.Helper()
	goal := a.answers.Load() + 50
	await(a.TB, "answers", func() bool { return a.Failed() || a.answers.Load() >= goal })
}

// end ends the clients.
func (a *asking) end() {
	a.stop()
	a.clients.Wait()
}

// Services that are created together reach Envoy in any order.
func TestClientsWaitForRevisions(t *testing.T) {
	t.Parallel()
	for _, protocol := range []Protocol{Auto, TCP} {
		r := runEnvoy(t)
		pod := newHTTPPod(t, ok)
		other := shop(t, pod.at)
		other.Name = "default/other"
		r.set(other)
		get(t, client(t, false), other.at())

		s := split(t, 50, 50)
		s.Protocol = protocol
		a := askOn(t, s)
		listens := func(s Service) bool {
			var d net.Dialer
			c, err := d.DialContext(t.Context(), "tcp4", s.at().String())
			if err == nil {
				c.Close()
			}
			return err == nil
		}
		list := []Service{s, other}
		for i, v := range []string{"v1", "v2"} {
			// Envoy listens at another port for the other service once it has all that came before that.
			list[1].Port = shop(t).Port
			r.set(list...)
			await(t, "Envoy has the change", func() bool { return listens(list[1]) })
			if listens(s) {
				t.Errorf("%d of two revisions are there, and Envoy listens", i)
			}
			list = append(list, revision(t, v, pod.at))
		}
		r.set(list...)
		a.more()
		a.end()
	}
}

func TestRevisionsComeAndGoWithoutALostRequest(t *testing.T) {
	t.Parallel()
	for _, protocol := range []Protocol{HTTP1, Auto, TCP} {
		t.Run(fmt.Sprint("protocol ", protocol), func(t *testing.T) {
			t.Parallel()
			r := runEnvoy(t)
			pod := newHTTPPod(t, ok)
			s, first, second := split(t, 50, 50), revision(t, "v1", pod.at), revision(t, "v2", pod.at)
			s.Protocol = protocol
			only := s
			only.Traffic.Revisions = s.Traffic.Revisions[1:]
			r.set(s, first, second)
			a := askOn(t, s)
			for range 10 {
				a.more()
				r.set(only, second)
				a.more()
				r.set(s, first, second)
			}
			a.more()
		})
	}
}

// A revision is deleted while it gets half of the requests: its pods are drained, and nobody wakes it any more.
func TestDeletedRevisionLosesNoRequest(t *testing.T) {
	t.Parallel()
	for _, protocol := range []Protocol{HTTP1, Auto} {
		t.Run(fmt.Sprint("protocol ", protocol), func(t *testing.T) {
			t.Parallel()
			r := runEnvoy(t)
			stays := newHTTPPod(t, ok)
			s, second := split(t, 50, 50), revision(t, "v2", stays.at)
			s.Protocol = protocol
			only := s
			only.Traffic.Revisions = s.Traffic.Revisions[1:]
			ends := newHTTPPod(t, ok)
			first := revision(t, "v1", ends.at) // nothing listens at its address
			r.set(s, first, second)
			a := askOn(t, s)
			for range 5 {
				a.more()
				drained := first
				drained.Pods = nil
				r.set(only, drained, second)
				if err := r.server.AwaitThreads(t.Context()); err != nil {
					t.Fatal(err)
				}
				before := ends.requests.Load()
				a.more()
				if late := ends.requests.Load() - before; late > 0 {
					t.Errorf("%d requests for a revision after its routes were gone", late)
				}
				ends.server.Close()
				r.set(only, second)
				a.more()
				ends = newHTTPPod(t, ok)
				first.Pods = []netip.AddrPort{ends.at}
				r.set(only, first, second) // requests may come only now
				r.set(s, first, second)
			}
			a.more()
			a.end()
		})
	}
}

// Routes without a revision that got no requests are the same: Envoy has nothing to acknowledge.
func TestPodsOfARevisionWithoutRequestsAreNotKept(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod := newHTTPPod(t, ok)
	s, first, second := split(t, 0, 100), revision(t, "v1", pod.at), revision(t, "v2", pod.at)
	only := s
	only.Traffic.Revisions = s.Traffic.Revisions[1:]
	r.set(s, first, second)
	get(t, client(t, false), s.at())
	first.Pods = nil
	r.set(only, first, second)
}

// The daemon is replaced: Envoy keeps what it has, and with it the connections of clients.
func TestEnvoyKeepsItsListenersForAnotherServer(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	v1, v2 := newHTTPPod(t, ok), newHTTPPod(t, ok)
	s, first, second := split(t, 100, 0), revision(t, "v1", v1.at), revision(t, "v2", v2.at)
	plain := shop(t, v1.at)
	plain.Name = "default/plain"
	r.set(s, plain, first, second)
	<-r.connected
	of := map[netip.AddrPort]*http.Client{s.at(): client(t, false), plain.at(): client(t, false)}
	for at, c := range of {
		get(t, c, at)
	}
	r.server.Close()
	var err error
	r.server, err = Serve(Config{
		Socket: r.socket, Owner: os.Getuid(), Log: slog.New(slog.NewTextHandler(r.log, nil)),
		Connected: func(_ context.Context, p Proxy) { r.connected <- p },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.server.Close)
	s.Traffic.Revisions[0].Percent, s.Traffic.Revisions[1].Percent = 0, 100
	plain.Pods = second.Pods
	if err := r.server.Set([]Service{s, plain, first, second}); err != nil {
		t.Fatal(err)
	}
	<-r.connected
	for at, c := range of {
		before := v2.requests.Load()
		await(t, "the change", func() bool {
			if _, anew := ask(t, c, at, "", ""); anew {
				t.Fatalf("%v: the connection has ended", at)
			}
			return v2.requests.Load() > before+10
		})
	}
}
