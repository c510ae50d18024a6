// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// A service without pods is started by a request, serves the next one warm, is put to sleep, and wakes again.
func TestServiceWakesServesAndSleepsAgain(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, service{name: "hello"})
	if s := l.service(t, "hello"); s.Service.Status.Replicas != 0 || s.Service.Status.State != "Cold" || len(s.Pods) != 0 {
		t.Fatalf("before any request: %+v", s)
	}
	address := l.address(t, "hello")
	instances := map[string]bool{}
	for _, want := range []struct {
		what      string
		instances int
	}{{"cold", 1}, {"warm", 1}, {"cold again", 2}} {
		if want.what == "cold again" {
			l.sleep(t, "hello")
		}
		a := e2e.MustAsk(t, l.Client(), address)
		if a.ClientAddr() != l.Client().Addr {
			t.Errorf("%s: the server sees %s, want the client's address %s", want.what, a.Client, l.Client().Addr)
		}
		if instances[a.Instance] = true; len(instances) != want.instances {
			t.Errorf("%s: %d processes have answered so far, want %d", want.what, len(instances), want.instances)
		}
		// The answer may arrive before the controller has made the service warm.
		s := l.until(t, "hello", "warm", isState("Warm")).Service.Status
		if s.Replicas != 1 {
			t.Errorf("%s: %+v", want.what, s)
		}
		l.until(t, "hello", "the time of the request", func(s status.Status) bool {
			return s.Service.Status.LatestRequest != nil && time.Since(s.Service.Status.LatestRequest.Time) < e2e.Patience
		})
	}
}

// Each request finds no pod. None is lost, and no client has to wait for a second, the timer by which it repeats its
// SYN. A client that comes while the gate still has the pod that ends is asked to prove where it is, and repeats its
// SYN at once.
func TestHundredColdRequestsLoseNoSYN(t *testing.T) {
	const requests = 100
	l := newLab(t, 1)
	l.start(t, service{name: "hello"})
	address := l.address(t, "hello")
	released := func() lifecycle.Waterfall {
		var w lifecycle.Waterfall
		eventually(t, "the waterfall", func() bool {
			all := l.wakes(t, "hello")
			w = all[len(all)-1]
			return w.Released > 0
		})
		return w
	}
	instances := map[string]bool{}
	for i := range requests {
		before, begin := retransmits(t, l.Client()), time.Now()
		a, err := e2e.Ask(l.Client(), address)
		took := time.Since(begin)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		instances[a.Instance] = true
		l.until(t, "hello", "warm", isState("Warm"))
		after, _ := released().At(lifecycle.PhaseReleased)
		if n := retransmits(t, l.Client()) - before; n != 0 && took-after > time.Second {
			t.Errorf("request %d: the client sent %d SYNs again, and took %v; its first one went on after %v", i, n, took,
				after)
		}
		l.sleep(t, "hello")
	}
	if len(instances) != requests {
		t.Errorf("%d processes answered %d cold requests", len(instances), requests)
	}
	for _, w := range l.wakes(t, "hello") {
		if w.Result != lifecycle.ResultWarm || w.Released != 1 || w.Parked != 1 {
			t.Errorf("wake %d: %+v, want one SYN parked and released", w.Number, w)
		}
	}
}

// crowd has every client send a number of requests at once, each on a new connection, and returns the answers.
func crowd(t *testing.T, clients []*netlab.Namespace, each int, address string) []e2e.Answer {
	t.Helper()
	var mu sync.Mutex
	var answers []e2e.Answer
	var group sync.WaitGroup
	begin := make(chan struct{})
	for _, c := range clients {
		for range each {
			group.Go(func() {
				<-begin
				a, err := e2e.Ask(c, address)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("client %s: %v", c.Host, err)
				}
				answers = append(answers, a)
			})
		}
	}
	close(begin)
	group.Wait()
	return answers
}

func TestFiveHundredClientsOfAColdServiceWakeOnePod(t *testing.T) {
	const clients, each = 4, 125
	l := newLab(t, clients)
	l.start(t, service{name: "hello"})
	seen := map[string]bool{}
	for _, a := range crowd(t, l.Clients, each, l.address(t, "hello")) {
		seen[a.Instance] = true
	}
	if len(seen) != 1 {
		t.Errorf("%d processes answered, want one", len(seen))
	}
	if w := l.wakes(t, "hello"); len(w) != 1 || w[0].Result != lifecycle.ResultWarm {
		t.Errorf("wakes: %+v, want one", w)
	}
	s := l.until(t, "hello", "all flows counted",
		func(s status.Status) bool { return s.Traffic.NewFlows >= clients*each })
	if s.Traffic.NewFlows != clients*each {
		t.Errorf("%d flows counted, want %d", s.Traffic.NewFlows, clients*each)
	}
	l.untilNoFlows(t, "hello")
}

// Each service is woken by several clients.
func TestEightServicesWakeAtOnce(t *testing.T) {
	const services, each = 8, 5
	l := newLab(t, 2)
	var specs []service
	for i := range services {
		specs = append(specs, service{name: fmt.Sprintf("s%d", i), env: map[string]string{"VERSION": fmt.Sprint(i)}})
	}
	l.start(t, specs...)
	for range 2 {
		var group sync.WaitGroup
		for i := range services {
			address := l.address(t, fmt.Sprintf("s%d", i))
			group.Go(func() {
				for _, a := range crowd(t, l.Clients, each, address) {
					if a.Version != fmt.Sprint(i) {
						t.Errorf("service %d is answered by %q", i, a.Version)
					}
				}
			})
		}
		group.Wait()
		for i := range services {
			l.sleep(t, fmt.Sprintf("s%d", i))
		}
	}
	for i := range services {
		if w := l.wakes(t, fmt.Sprintf("s%d", i)); len(w) != 2 {
			t.Errorf("service %d: %d wakes, want 2", i, len(w))
		}
	}
}
