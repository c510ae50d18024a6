// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

func TestFittingPodsAreAdoptedAndOthersStopped(t *testing.T) {
	w := newWorld(t, nil)
	keep, other := newService("keep"), newService("other")
	w.rt.add(keep)  // keep-1
	w.rt.add(keep)  // keep-2, the newest
	w.rt.add(other) // other-3
	w.rt.add(newService("gone"))
	dead := w.rt.add(newService("dead"))
	dead.Started = 0
	w.rt.pods[dead.ID] = dead
	w.apply(keep, newService("other", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"new"} }),
		newService("dead"))
	w.until("the others are stopped", func() bool { _, _, s := w.rt.state(); return len(s) == 4 })
	if running, _, _ := w.rt.state(); len(running) != 1 || running[0] != "keep-2" {
		t.Fatalf("running %v", running)
	}
	a := w.vip("keep")
	w.until("served", func() bool { return w.d.pods(a) == " serving" })
	w.d.mu.Lock()
	if got := w.d.history[0]; got != a.String()+": starting" {
		t.Errorf("first published as %q", got)
	}
	w.d.mu.Unlock()
	if w.state("keep") != "Warm" || w.state("other") != "Cold" || w.state("dead") != "Cold" {
		t.Errorf("keep %s, other %s, dead %s", w.state("keep"), w.state("other"), w.state("dead"))
	}
}

// The clients wait for the next controller.
func TestDetachDuringAWakeRefusesNoClient(t *testing.T) {
	w := newWorld(t, nil)
	gaveUp := make(chan struct{})
	w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error {
		<-ctx.Done()
		close(gaveUp)
		return ctx.Err()
	}
	w.apply(newService("a"))
	a := w.vip("a")
	w.d.syn(a)
	w.untilState("a", "Waking")
	reports := w.c.Subscribe(context.Background())
	w.c.Detach()
	<-gaveUp
	for e := range reports {
		if strings.Contains(e.Text, "failed") {
			t.Errorf("reported: %+v", e)
		}
	}
	if r := w.d.reasons(a); len(r) > 0 {
		t.Errorf("refused: %q", r)
	}
}

func TestNextControllerAdoptsWithHigherGenerations(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	before := w.d.backends[a].Generation
	w.c.Detach()
	if running, _, _ := w.rt.state(); len(running) != 1 {
		t.Fatalf("running %v after Detach", running)
	}
	w.d.client.Close()
	w.boot(func(*Config) {})
	defer w.c.Detach()
	w.d = w.daemon()
	w.apply(newService("a"))
	if got := w.vip("a"); got != a {
		t.Errorf("had %v, now %v", a, got)
	}
	w.until("served", func() bool { return w.d.pods(a) == " serving" })
	if after := w.d.backends[a].Generation; after <= before {
		t.Errorf("generation %d after %d", after, before)
	}
	if _, started, stopped := w.rt.state(); len(started) != 1 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
}

// A pod that runs already counts.
func TestMinReplicasRunWithoutAClient(t *testing.T) {
	w := newWorld(t, nil)
	least := func(s *v1alpha1.WangellServiceSpec) { s.MinReplicas = 1 }
	w.rt.add(newService("old", least)) // old-1
	w.apply(newService("old", least), newService("new", least))
	w.untilState("new", "Warm")
	w.untilState("old", "Warm")
	w.apply(newService("old", least), newService("new", least), newService("later", least))
	w.untilState("later", "Warm")
	if running, started, _ := w.rt.state(); len(running) != 3 || len(started) != 3 { // old-1 among them
		t.Errorf("running %v, started %v", running, started)
	}
	w.apply(newService("old", least), newService("new", least))
	w.apply(newService("old", least), newService("new", least), newService("later", least)) // while it is removed
	w.until("it has a pod again", func() bool {
		_, started, _ := w.rt.state()
		return len(started) == 4
	})
	w.untilState("later", "Warm")
}

// The next leader takes what runs, whatever its spec, and stops nothing that it does not know.
func TestClusterPodsAreAllAdopted(t *testing.T) {
	a, x := newService("a", upTo(3)), newService("x")
	older := newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"old"} })
	w := newCluster(t, func(r *fakeCluster) {
		r.next = []string{"n1", "n2", "n1", "n1", "n2"}
		r.place(a)
		r.place(older)
		r.place(x)
		early := r.place(a) // its network is there, its process not yet
		early.Started = 0
		r.pods[early.ID] = early
		blank := r.place(a) // it has no network yet
		blank.Started, blank.Addr = 0, netip.Addr{}
		r.pods[blank.ID] = blank
	})
	vip := w.put(a, 1)
	w.cluster.leaving <- runtime.Leave{PodID: "a-1"} // before the services are known
	w.synced()
	w.until("they serve", func() bool {
		return strings.Count(w.d.pods(vip), " serving") == 2 && strings.Contains(w.d.pods(vip), "draining")
	})
	if running, _, stopped := w.rt.state(); len(running) != 5 || len(stopped) != 0 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
	// A service that is put later finds its pods, too.
	other := w.put(x, 2)
	w.until("x serves", func() bool { return w.d.pods(other) == " serving" })
	if st := w.status("x"); st.Service.Status.State != "Warm" || st.Pods[0].ID != "x-3" {
		t.Errorf("status %+v", st)
	}
}

// Pods that a service has already count, whether the service is put before Synced or after.
func TestMinReplicasRunOnACluster(t *testing.T) {
	least := func(s *v1alpha1.WangellServiceSpec) { s.MinReplicas, s.MaxReplicas = 2, 2 }
	a, b, x := newService("a", least), newService("b", least), newService("x", least)
	w := newCluster(t, func(r *fakeCluster) {
		r.next = []string{"n1", "n2", "n1"}
		r.place(x)
		r.place(x)
	})
	first := w.put(a, 1)
	w.synced()
	two := func(vip netip.AddrPort) {
		t.Helper()
		w.until("two pods serve", func() bool { return strings.Count(w.d.pods(vip), " serving") == 2 })
	}
	two(first)
	two(w.put(b, 2))
	two(w.put(x, 3))
	if running, _, stopped := w.rt.state(); len(running) != 6 || len(stopped) != 0 {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
}

// The pod of an older spec listens on another port.
func TestAdoptedPodKeepsItsPort(t *testing.T) {
	w := newCluster(t, func(r *fakeCluster) {
		p := r.place(newService("a"))
		p.Ports[0] = 4711
		r.pods[p.ID] = p
	})
	a := w.put(newService("a"), 1)
	w.synced()
	w.untilPods(a, " serving")
	if b := w.d.backend(a, 0); b.Addr.Port() != 4711 {
		t.Errorf("published with port %d", b.Addr.Port())
	}
}
