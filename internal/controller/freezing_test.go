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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
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
	w.cluster.reserved = runtime.Reservations{CPU: 0.5, Kept: "why"}
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
