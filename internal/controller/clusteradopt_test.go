// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

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
		p.Port = 4711
		r.pods[p.ID] = p
	})
	a := w.put(newService("a"), 1)
	w.synced()
	w.untilPods(a, " serving")
	if b := w.d.backend(a, 0); b.Addr.Port() != 4711 {
		t.Errorf("published with port %d", b.Addr.Port())
	}
}
