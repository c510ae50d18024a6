// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestLeastRecentlyUsedFrozenServiceIsStopped(t *testing.T) {
	for name, c := range map[string]struct {
		there []frozenThere
		want  runtime.Key
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
	w.cluster.reserved = runtime.Reservations{Short: "pod a-3 has no room", ShortOn: "n2"}
	w.cluster.mu.Unlock()
	w.d2.send(&wire.Frozen{Service: a, PodID: wireID(pod), Seq: 1, At: monotime.Now()})
	w.untilState("large", "Cold")
	if state := w.state("small"); state != "Frozen" {
		t.Errorf("a service that requests nothing is %s", state)
	}
}
