// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// stopsLate makes stops of the runtime end when the function is called that it returns.
func (w *world) stopsLate() (end func()) {
	gate := make(chan struct{})
	end = sync.OnceFunc(func() { close(gate) })
	w.t.Cleanup(end)
	w.rt.onStop = func(ctx context.Context, _ string) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return end
}

// Neither a process that has ended, although the runtime is not done with the pod, nor one that has not got its signal
// yet is late.
func TestPodThatIgnoresSIGTERMIsTold(t *testing.T) {
	w := newWorld(t, nil)
	end := w.stopsLate()
	w.apply(newService("a"), newService("b"), newService("c"))
	for i, name := range []string{"a", "b", "c"} {
		w.warm(name)
		if id := fmt.Sprint(name, "-", i+1); len(w.status(name).Pods) != 1 || w.status(name).Pods[0].ID != id {
			t.Fatalf("pods %+v, want %s", w.status(name).Pods, id)
		}
		go func() { _ = w.c.Sleep(t.Context(), runtime.Key("default/"+name)) }()
	}
	w.rt.ending <- runtime.Ending{PodID: "c-3", Grace: time.Minute, Ended: func() bool { return true }}
	w.rt.ending <- runtime.Ending{PodID: "a-1", Grace: 29*time.Second + 900*time.Millisecond,
		Ended: func() bool { return false }}
	message := func(name string) string { return w.status(name).Service.Status.Message }
	w.until("it is told", func() bool {
		return strings.HasPrefix(message("a"),
			"pod a-1 did not end within 2s of its stop signal: it is killed 30s after the signal.")
	})
	for _, name := range []string{"b", "c"} {
		if m := message(name); m != "" {
			t.Errorf("%s: %s", name, m)
		}
	}
	end()
	w.until("it is over", func() bool { return message("a") == "" })
}

// A machine that stops a thousand pods at once has something else to write.
func TestManyLatePodsAreOneEvent(t *testing.T) {
	w := newWorld(t, nil)
	end := w.stopsLate()
	events := w.c.Subscribe(t.Context())
	const n = lateAlone + 2
	var list []*v1alpha1.WangellService
	for i := range n {
		list = append(list, newService(fmt.Sprint("s", i)))
	}
	w.apply(list...)
	for _, s := range list {
		w.warm(s.Name)
		go func() { _ = w.c.Sleep(t.Context(), runtime.KeyOf(s)) }()
	}
	for _, s := range list {
		w.rt.ending <- runtime.Ending{PodID: w.status(s.Name).Pods[0].ID, Grace: time.Minute}
	}
	for e := range events {
		if !strings.Contains(e.Text, "stop signal") {
			continue
		}
		const begin, end = "12 pods of 12 services, pod s", " among them, did not end within 2s of their stop signals"
		if e.Service != "" || !strings.HasPrefix(e.Text, begin) || !strings.Contains(e.Text, end) {
			t.Errorf("service %q: %s", e.Service, e.Text)
		}
		break
	}
	for _, s := range list {
		if m := w.status(s.Name).Service.Status.Message; !strings.Contains(m, "of its stop signal") {
			t.Errorf("%s: %s", s.Name, m)
		}
	}
	end()
}

// The runtime reports when the signal is sent, whatever deletes the pod.
func TestPodOfAClusterThatIgnoresSIGTERMIsTold(t *testing.T) {
	w := newCluster(t, nil)
	a := w.put(newService("a", upTo(2)), 1)
	w.synced()
	w.scale("a", 2)
	w.untilPods(a, " serving serving")
	told := func() string { return w.status("a").Service.Status.Message }
	w.cluster.ending <- runtime.Ending{PodID: "a-1", Signal: time.Millisecond, Grace: 2 * time.Second} // killed by then
	w.cluster.ending <- runtime.Ending{PodID: "a-1", Signal: time.Millisecond, Grace: 7 * time.Second}
	w.cluster.ending <- runtime.Ending{PodID: "a-2", Signal: time.Second, Grace: 8 * time.Second}
	w.rt.exits <- runtime.Exit{PodID: "a-2", Service: "default/a"}
	const want = "pod a-1 did not end within 2s of its stop signal: it is killed 7s after the signal."
	w.until("it is told", func() bool { return strings.HasPrefix(told(), want) })
	w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a"}
	w.until("it is over", func() bool { return !strings.Contains(told(), "stop signal") })
}
