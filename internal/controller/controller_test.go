// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// untilCounts waits until both daemons have so many pods of each state, given in turn.
func (w *clusterWorld) untilCounts(a netip.AddrPort, want ...any) {
	w.t.Helper()
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		for i := 0; i < len(want); i += 2 {
			w.until(fmt.Sprint(d.node, " has ", want), func() bool {
				return strings.Count(d.pods(a), want[i].(string)) == want[i+1]
			})
		}
	}
}

// A pod that is deleted after its leader has given up the Lease, and before the next one is there, gets no new flows.
func TestRetiredControllerTellsWhichPodsLeave(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n2"} })
	a := w.put(newService("a", upTo(2)), 1)
	w.synced()
	w.scale("a", 2)
	w.untilPods(a, " serving serving")
	w.c.Retire()
	w.cluster.leaving <- runtime.Leave{PodID: "a-1"}
	w.untilCounts(a, "draining", 1, "serving", 1)
	if running, started, stopped := w.rt.state(); len(running) != 2 || len(started) != 2 || len(stopped) != 0 {
		t.Errorf("running %v, started %v, stopped %v: the next leader decides that", running, started, stopped)
	}
}

// A pod that was starting serves as soon as it listens, and its clients do not wait for the next leader.
func TestRetiredControllerFinishesWakes(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n2"} })
	starting, listen := make(chan struct{}), make(chan struct{})
	w.rt.onStart = func(context.Context, *v1alpha1.WangellService) error {
		close(starting)
		<-listen
		return nil
	}
	a := w.put(newService("a"), 1)
	w.synced()
	w.until("the table", func() bool { return w.d.has(a) && w.d2.has(a) })
	w.d2.syn(a)
	<-starting
	w.c.Retire()
	close(listen)
	w.untilPods(a, " serving")
}

// What a retired controller might decide is left to the next leader: nothing starts, stops or is refused, and the list
// of nodes does not shrink while daemons go over.
func TestRetiredControllerDecidesNothing(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n2", "n1"} })
	a, cold := w.put(newService("a", upTo(3)), 1), w.put(newService("cold"), 2)
	w.synced()
	w.until("the tables", func() bool { return w.d.has(cold) && w.d2.has(cold) })
	w.d.syn(a)
	w.untilPods(a, " serving")
	w.until("the list of nodes", func() bool {
		w.d2.mu.Lock()
		defer w.d2.mu.Unlock()
		return len(w.d2.nodes) == 2
	})
	w.c.Retire()
	w.d.syn(cold)
	w.d.send(&wire.Idle{Service: a, LastPacket: monotime.Now()})
	w.c.Scale("default/a", 3, "tested")
	if err := w.c.Put(Service{Spec: newService("b")}); err == nil {
		t.Error("a service was put")
	}
	w.d.client.Close() // to the next leader
	w.untilDaemons(1)
	w.cluster.leaving <- runtime.Leave{PodID: "a-1"}
	w.until("the pod drains", func() bool { return w.d2.pods(a) == " draining" })
	if _, started, stopped := w.rt.state(); len(started) != 1 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
	w.d2.mu.Lock()
	defer w.d2.mu.Unlock()
	if len(w.d2.nodes) != 2 || len(w.d2.refused) != 0 {
		t.Errorf("nodes %v, refused %v", w.d2.nodes, w.d2.refused)
	}
}

// A pod that crashes is replaced by the next leader, whose pods the retired controller tells as well.
func TestRetiredControllerReplacesNoPod(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) { r.next = []string{"n1", "n2", "n1", "n2"} })
	a := w.put(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.MinReplicas, s.MaxReplicas = 2, 2 }), 1)
	w.synced()
	w.untilPods(a, " serving serving")
	w.c.Retire()
	w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 1}
	w.untilCounts(a, "serving", 1)
	w.cluster.appeared <- w.cluster.place(newService("a")) // by the next leader
	w.untilCounts(a, "serving", 2)
	if _, started, stopped := w.rt.state(); len(started) != 3 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
}

func TestAwaitSuccessorEndsWithTheLastDaemon(t *testing.T) {
	w := newCluster(t, nil)
	w.synced()
	w.c.Retire()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := w.c.AwaitSuccessor(ctx); err == nil {
		t.Error("it returned while daemons were connected")
	}
	done := make(chan error, 1)
	go func() { done <- w.c.AwaitSuccessor(t.Context()) }()
	w.d.client.Close()
	w.d2.client.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// While a controller waits for its services, daemons stay with the one before. It sends no list of nodes before all of
// them had the time to come.
func TestDaemonsComeOnceTheServicesAreKnown(t *testing.T) {
	w := &world{t: t, rt: newFakeRuntime()}
	w.boot(func(c *Config) { c.AwaitServices = true })
	w.d = w.daemonOn("n1", &wire.Node{Addr: nodeAddr("n1")})
	t.Cleanup(func() {
		w.d.client.Close()
		w.c.Detach()
	})
	w.until("some HELLOs", func() bool { return w.c.server.Counters().ReceivedDatagrams > 3 })
	if n := len(w.c.server.Peers()); n != 0 {
		t.Fatalf("%d daemons before the services are known", n)
	}
	w.apply(newService("a"))
	w.vip("a")
	d2 := w.daemonOn("n2", &wire.Node{Addr: nodeAddr("n2")})
	defer d2.client.Close()
	w.until("the list of nodes", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return len(w.d.nodes) > 0
	})
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	if !slices.ContainsFunc(w.d.nodes, func(n string) bool { return strings.HasPrefix(n, "n1=") }) {
		t.Errorf("nodes %v", w.d.nodes)
	}
}

func TestShutdownEndsAllPodsAndGoroutines(t *testing.T) {
	before := goruntime.NumGoroutine()
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"), newService("c"))
	w.warm("a")
	w.warm("b")
	w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error { <-ctx.Done(); return ctx.Err() }
	w.d.syn(w.vip("c"))
	w.untilState("c", "Waking")
	if err := w.c.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if running, _, _ := w.rt.state(); len(running) != 0 {
		t.Errorf("running %v", running)
	}
	if err := w.c.Update(nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Update after the end: %v", err)
	}
	if err := w.c.Sleep(t.Context(), "default/a"); !errors.Is(err, ErrClosed) {
		t.Errorf("Sleep after the end: %v", err)
	}
	if err := w.c.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown twice: %v", err)
	}
	w.d.client.Close()
	w.until("no goroutine is left", func() bool { return goruntime.NumGoroutine() <= before })
}

func TestShutdownReportsPodsThatAreLeft(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	w.warm("a")
	w.rt.onStop = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // long enough to begin
	defer cancel()
	if err := w.c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 pods "+
		"are not gone") {
		t.Errorf("%v", err)
	}
}
