// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// freezing makes a service freeze after a second without a packet.
func freezing(s *v1alpha1.WangellServiceSpec) {
	s.Sleep = &v1alpha1.Sleep{FreezeAfter: &metav1.Duration{Duration: time.Second}}
}

// untilFreeze waits for the n-th FREEZE and returns it.
func (w *world) untilFreeze(n int) (m *wire.Freeze) {
	w.t.Helper()
	w.until(fmt.Sprint("FREEZE ", n), func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		if len(w.d.freezes) >= n {
			m = w.d.freezes[n-1]
		}
		return m != nil
	})
	return m
}

// idleSince has the daemon report that a service was used last some time ago.
func (w *world) idleSince(a netip.AddrPort, ago time.Duration) {
	w.d.send(&wire.Idle{Service: a, LastPacket: max(monotime.Now().Add(-ago), 1)})
}

func TestIdleServiceIsFrozenByItsDaemon(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", freezing, func(s *v1alpha1.WangellServiceSpec) { s.Sleep.FreezeWhenBusy = true }))
	a := w.warm("a")
	w.d.mu.Lock()
	entry := w.d.table[a]
	w.d.mu.Unlock()
	if entry.FreezeSeconds != 1 || entry.IdleSeconds != 300 {
		t.Errorf("entry %+v", entry)
	}
	w.idleSince(a, 5*time.Second)
	m := w.untilFreeze(1)
	if len(m.Pods) != 1 || m.Pods[0].PodID != wireID("a-1") || m.Pods[0].Cgroup != "/test/1" || !m.Reclaim {
		t.Fatalf("%+v", m)
	}
	frozen := &wire.Frozen{Service: a, PodID: wireID("a-1"), Seq: m.Seq, Frozen: true, At: monotime.Now(), Resident: 5,
		Swapped: 7}
	w.d.send(frozen)
	w.untilState("a", "Frozen")
	if p := w.status("a").Pods[0]; p.State != "frozen" || p.Frozen.ResidentBytes != 5 || p.Frozen.SwappedBytes != 7 {
		t.Errorf("pod %+v", p)
	}

	// A command needs the program: it waits until the daemon has thawed the pod.
	woken := make(chan error, 1)
	go func() { woken <- w.c.Wake(context.Background(), "default/a") }()
	if m = w.untilFreeze(2); len(m.Pods) != 0 || m.Seq <= frozen.Seq {
		t.Errorf("%+v", m)
	}
	select {
	case err := <-woken:
		t.Errorf("it is awake before it is thawed: %v", err)
	default:
	}
	w.d.send(&wire.Frozen{Service: a, PodID: wireID("a-1"), Seq: m.Seq, At: monotime.Now()})
	if err := <-woken; err != nil || w.state("a") != "Warm" || w.status("a").Pods[0].Frozen != nil {
		t.Errorf("%v: %+v", err, w.status("a"))
	}
}

// meteredRuntime reports how much CPU time pods have used.
type meteredRuntime struct {
	*fakeRuntime
	mu  sync.Mutex
	cpu time.Duration
}

func (r *meteredRuntime) Usage(context.Context, string) (runtime.Usage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return runtime.Usage{CPU: r.cpu, At: monotime.Now()}, nil
}

func (r *meteredRuntime) set(cpu time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cpu = cpu
}

func TestPodAtWorkIsNotFrozen(t *testing.T) {
	metered := &meteredRuntime{fakeRuntime: newFakeRuntime()}
	w := newWorld(t, func(c *Config) { c.Runtime = metered })
	w.rt = metered.fakeRuntime
	w.apply(newService("a", freezing))
	a := w.warm("a")
	measured := func() (at monotime.Time) {
		w.c.loop.call(func() { at = w.c.engine.table.services["default/a"].pods[0].still.since.At })
		return at
	}
	last := monotime.Now()
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("a-1"), NewFlows: 1, LastPacket: last}}})
	w.until("the pod is measured after its packet", func() bool { return measured() > last })
	time.Sleep(1100 * time.Millisecond) // freezeAfter
	metered.set(time.Hour)
	w.d.send(&wire.Idle{Service: a, LastPacket: last})
	w.until("it is found busy", func() bool { return strings.Contains(w.status("a").NotFrozen, "a pod works") })
	if w.state("a") != "Warm" {
		t.Errorf("it is %s", w.state("a"))
	}
	// Its work is done.
	w.d.send(&wire.Idle{Service: a, LastPacket: last})
	w.untilFreeze(1)
}

func TestStatesAddUp(t *testing.T) {
	s := spent{since: 10}
	s.enter(lifecycle.Warm, 15)
	s.enter(lifecycle.Frozen, 40)
	s.enter(lifecycle.Warm, 45)
	got := s.until(50)
	if got[lifecycle.Cold] != 5 || got[lifecycle.Warm] != 30 || got[lifecycle.Frozen] != 5 {
		t.Errorf("got %v", got)
	}
}

// frozenOn makes the n-th service, whose only pod is frozen by the daemon of a node, n1 or n2.
func (w *clusterWorld) frozenOn(node, name string, n byte, change func(*v1alpha1.WangellServiceSpec)) (
	a netip.AddrPort, pod string) {
	w.t.Helper()
	w.cluster.mu.Lock()
	w.cluster.next = append(w.cluster.next, node)
	w.cluster.mu.Unlock()
	a = w.put(newService(name, change), n)
	w.synced()
	w.scale(name, 1)
	w.untilPods(a, " serving")
	pod = w.status(name).Pods[0].ID
	d := map[string]*fakeDaemon{"n1": w.d, "n2": w.d2}[node]
	d.send(&wire.Idle{Service: a, LastPacket: max(monotime.Now().Add(-5*time.Second), 1)})
	var seq uint64
	w.until("FREEZE", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, m := range d.freezes {
			if m.Service == a && len(m.Pods) == 1 && m.Pods[0].PodID == wireID(pod) && m.UnlessBusy {
				seq = m.Seq
			}
		}
		return seq > 0
	})
	d.send(&wire.Frozen{Service: a, PodID: wireID(pod), Seq: seq, Frozen: true, At: monotime.Now()})
	w.untilState(name, "Frozen")
	return a, pod
}

// In a cluster, daemons look whether pods are at work, and find their cgroups. The cluster hears of it for the sake of
// their requests.
func TestPodsOfAClusterAreFrozenByTheirNode(t *testing.T) {
	w := newCluster(t, func(*fakeCluster) {})
	a, _ := w.frozenOn("n2", "a", 1, freezing)
	heard := func(frozen bool) func() bool {
		return func() bool {
			w.cluster.mu.Lock()
			defer w.cluster.mu.Unlock()
			last, ok := w.cluster.frozen["a-1"]
			return ok && last == frozen
		}
	}
	w.until("the cluster hears of it", heard(true))
	w.cluster.mu.Lock()
	w.cluster.reserved = reservation.Summary{CPU: 0.5, Kept: "why"}
	w.cluster.mu.Unlock()
	if got := w.status("a").Reservations; got.CPU != 0.5 || got.Kept != "why" {
		t.Errorf("status %+v", got)
	}
	w.d2.send(&wire.Frozen{Service: a, PodID: wireID("a-1"), Seq: 1, At: monotime.Now()})
	w.until("the cluster hears that it runs", heard(false))
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	if len(w.d.freezes) > 0 {
		t.Errorf("the other node got %+v", w.d.freezes[0])
	}
}

func TestLeastRecentlyUsedFrozenServiceIsStopped(t *testing.T) {
	for name, c := range map[string]struct {
		there []frozenThere
		want  v1alpha1.Key
	}{
		"none": {nil, ""},
		"the oldest": {[]frozenThere{
			{key: "a", frozen: true, stops: true, last: 2}, {key: "b", frozen: true, stops: true, last: 1},
		}, "b"},
		"never used": {[]frozenThere{
			{key: "a", frozen: true, stops: true, last: 2}, {key: "b", frozen: true, stops: true},
		}, "b"},
		"always the same": {[]frozenThere{
			{key: "b", frozen: true, stops: true, last: 1}, {key: "a", frozen: true, stops: true, last: 1},
		}, "a"},
		"kept":  {[]frozenThere{{key: "a", frozen: true, last: 1}, {key: "b", frozen: true, stops: true, last: 2}}, "b"},
		"awake": {[]frozenThere{{key: "a", stops: true, last: 1}}, ""},
		"one is being stopped": {[]frozenThere{
			{key: "a", frozen: true, stops: true, last: 1}, {key: "b", stops: true, ending: true, last: 2},
		}, ""},
	} {
		if got, ok := leastRecentlyUsed(c.there); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: got %q, %t", name, got, ok)
		}
	}
}

// stoppable makes a service freeze, and stop when its node is short of room.
func stoppable(s *v1alpha1.WangellServiceSpec) {
	freezing(s)
	s.Sleep.OnPressure = v1alpha1.PressureStop
}

// used has the daemon of n2 report how many flows a service had, and when the last packet, and waits for that.
func (w *clusterWorld) used(name string, a netip.AddrPort, pod string, flows uint64, last monotime.Time) {
	w.t.Helper()
	w.d2.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID(pod), NewFlows: flows, LastPacket: last}}})
	w.until("its use is known", func() bool { return w.status(name).Traffic.NewFlows == flows })
}

func TestNodeThatIsShortOfMemoryStopsOneFrozenServiceAfterTheOther(t *testing.T) {
	ending := make(chan struct{})
	w := newCluster(t, func(r *fakeCluster) {
		r.onStop = func(context.Context, string) error { <-ending; return nil }
	})
	end := sync.OnceFunc(func() { close(ending) })
	t.Cleanup(end)
	_, kept := w.frozenOn("n2", "kept", 1, freezing)
	later, pod := w.frozenOn("n2", "later", 2, stoppable)
	w.used("later", later, pod, 1, monotime.Now())
	w.frozenOn("n2", "first", 3, stoppable)
	w.frozenOn("n1", "elsewhere", 4, stoppable)

	short := &wire.Memory{Available: 100 << 20, Total: 4 << 30}
	w.d2.send(short)
	w.untilState("first", "Stopping")
	w.d2.send(short)
	w.used("later", later, pod, 2, monotime.Now()) // what was sent before that is handled by then
	if state := w.state("later"); state != "Frozen" {
		t.Errorf("while another one is being stopped, the next is %s", state)
	}
	end()
	w.untilState("first", "Cold")
	w.d2.send(short)
	w.untilState("later", "Cold")
	w.d2.send(short)
	for _, name := range []string{"kept", "elsewhere"} {
		if state := w.state(name); state != "Frozen" {
			t.Errorf("%s, whose pod is %s, is %s", name, kept, state)
		}
	}
}

// One that is to have a pod now would not be stopped, and must not stand in the way of others.
func TestServiceThatIsToHaveAPodIsNotStoppedForMemory(t *testing.T) {
	w := newCluster(t, func(*fakeCluster) {})
	w.frozenOn("n2", "first", 1, func(s *v1alpha1.WangellServiceSpec) {
		stoppable(s)
		s.Sleep.Schedule = []v1alpha1.WarmPeriod{{From: "* * * * *", To: "0 0 1 1 *"}}
	})
	w.frozenOn("n2", "second", 2, stoppable)
	w.d2.send(&wire.Memory{Available: 100 << 20, Total: 4 << 30})
	w.untilState("second", "Cold")
	if state := w.state("first"); state != "Frozen" {
		t.Errorf("a service within a period of its schedule is %s", state)
	}
}

// A pod that was thawed finds its node full: frozen pods that keep their requests make room.
func TestPodWithoutRoomStopsFrozenPodsThatKeepTheirRequests(t *testing.T) {
	w := newCluster(t, func(*fakeCluster) {})
	requests := func(s *v1alpha1.WangellServiceSpec) {
		stoppable(s)
		s.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	}
	w.frozenOn("n2", "small", 1, stoppable) // it requests nothing
	w.frozenOn("n2", "large", 2, requests)
	a, pod := w.frozenOn("n2", "a", 3, freezing)
	w.cluster.mu.Lock()
	w.cluster.reserved = reservation.Summary{Short: "pod a-3 has no room", ShortOn: "n2"}
	w.cluster.mu.Unlock()
	w.d2.send(&wire.Frozen{Service: a, PodID: wireID(pod), Seq: 1, At: monotime.Now()})
	w.untilState("large", "Cold")
	if state := w.state("small"); state != "Frozen" {
		t.Errorf("a service that requests nothing is %s", state)
	}
}
