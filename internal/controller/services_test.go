// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestUserWakesAService(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	w.vip("a")
	for range 2 { // the second time it serves already
		if err := w.c.Wake(t.Context(), "default/a"); err != nil || w.state("a") != "Warm" || w.status("a").Serving != 1 {
			t.Fatalf("%v: %+v", err, w.status("a"))
		}
	}
	if _, started, _ := w.rt.state(); len(started) != 1 {
		t.Errorf("started %v", started)
	}
	if err := w.c.Wake(t.Context(), "default/none"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("of no service: %v", err)
	}
}

func TestUserLearnsWhyAServiceDoesNotWake(t *testing.T) {
	w := newWorld(t, nil)
	w.rt.onStart = func(context.Context, *v1alpha1.WangellService) error { return errScript }
	w.apply(newService("a"))
	w.vip("a")
	for range 4 { // the third and fourth within the backoff
		if err := w.c.Wake(t.Context(), "default/a"); err == nil || !strings.Contains(err.Error(), errScript.Error()) {
			t.Fatalf("%v", err)
		}
	}
	w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error { <-ctx.Done(); return ctx.Err() }
	done := make(chan error)
	go func() { done <- w.c.Wake(t.Context(), "default/a") }()
	w.untilState("a", "Waking")
	w.apply()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("of a service that is removed: %v", err)
	}
}

func TestHeldServiceDoesNotFallAsleep(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.vip("a")
	release, err := w.c.Hold(t.Context(), "default/a")
	if err != nil {
		t.Fatal(err)
	}
	last := monotime.Now()
	w.d.set(func(d *fakeDaemon) { d.last[a] = last })
	w.d.send(&wire.Idle{Service: a, LastPacket: last})
	// What follows on the same session is handled later.
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("a-1"), NewFlows: 7, LastPacket: last}}})
	w.until("the daemon's next message is handled", func() bool { return w.status("a").Traffic.NewFlows == 7 })
	if w.state("a") != "Warm" {
		t.Fatalf("it is %s", w.state("a"))
	}
	release()
	release()
	w.d.send(&wire.Idle{Service: a, LastPacket: last})
	w.untilState("a", "Cold")
	if n := len(w.c.engine.held); n != 0 {
		t.Errorf("%d services are held", n)
	}
}

func TestRestartReplacesPodsOneAtATime(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.MinReplicas, s.MaxReplicas = 2, 2 }))
	a := w.vip("a")
	w.until("two pods serve", func() bool { return w.d.pods(a) == " serving serving" })
	w.d.set(func(d *fakeDaemon) { d.history = nil })
	n, err := w.c.Restart(t.Context(), "default/a")
	if err != nil || n != 2 || w.status("a").Serving != 2 {
		t.Fatalf("%d, %v, %+v", n, err, w.status("a"))
	}
	w.until("the old ones are gone", func() bool { _, _, stopped := w.rt.state(); return len(stopped) == 2 })
	if _, started, stopped := w.rt.state(); !slices.Equal(started[:2], sorted(stopped)) || len(started) != 4 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	for _, h := range w.d.history {
		if strings.Count(h, "serving") < 2 {
			t.Errorf("fewer than two pods served: %v", w.d.history)
		}
	}
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return list
}

func TestRestartEndsTheOnlyWriterFirst(t *testing.T) {
	w := newWorld(t, nil)
	service := newService("a")
	writes(&service.Spec)
	w.apply(service)
	w.warm("a")
	w.rt.onStart = func(context.Context, *v1alpha1.WangellService) error {
		if running, _, _ := w.rt.state(); len(running) > 0 {
			t.Errorf("%v still runs", running)
		}
		return nil
	}
	if n, err := w.c.Restart(t.Context(), "default/a"); err != nil || n != 1 || w.state("a") != "Warm" {
		t.Errorf("%d, %v: %s", n, err, w.state("a"))
	}
}

func TestFailedRestartKeepsThePods(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	if n, err := w.c.Restart(t.Context(), "default/a"); n != 0 || err != nil {
		t.Errorf("of a service that sleeps: %d, %v", n, err)
	}
	a := w.warm("a")
	w.rt.onStart = func(context.Context, *v1alpha1.WangellService) error { return errScript }
	if _, err := w.c.Restart(t.Context(), "default/a"); err == nil ||
		!strings.Contains(err.Error(), "restart failed, the previous pod continues to serve: "+errScript.Error()) {
		t.Errorf("%v", err)
	}
	if w.d.pods(a) != " serving" || w.state("a") != lifecycle.Warm.String() {
		t.Errorf("pods %q, %s", w.d.pods(a), w.state("a"))
	}
	w.rt.onStart = nil
	if n, err := w.c.Restart(t.Context(), "default/a"); n != 1 || err != nil {
		t.Errorf("the next one: %d, %v", n, err)
	}
}

func TestResolveFindsTheServiceThatIsMeant(t *testing.T) {
	w := newWorld(t, nil)
	other := newService("x")
	other.Namespace = "team"
	third := newService("y")
	third.Namespace = "team"
	fourth := newService("y")
	fourth.Namespace = "ops"
	w.apply(newService("x"), other, third, fourth)
	for in, want := range map[string]string{"x": "default/x", "team/x": "team/x", "ops/y": "ops/y"} {
		if got, err := w.c.Resolve(in); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	if _, err := w.c.Resolve("y"); err == nil || !strings.Contains(err.Error(), "[ops/y team/y]") {
		t.Errorf("y: %v", err)
	}
	if _, err := w.c.Resolve("team"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("team: %v", err)
	}
}

func TestReadyNeedsServicesAndADaemon(t *testing.T) {
	w := newWorld(t, nil)
	if w.c.Ready() == nil {
		t.Error("ready without services")
	}
	w.apply()
	w.until("ready", func() bool { return w.c.Ready() == nil })
	w.d.client.Close()
	w.until("not ready without a daemon", func() bool { return w.c.Ready() != nil })
}

func TestChangedReturnsEachServiceOnce(t *testing.T) {
	w := newCluster(t, nil)
	for i := range 5 {
		w.put(newService(fmt.Sprint("s", i)), byte(i+1))
	}
	w.synced()
	seen := map[v1alpha1.Key]bool{}
	for len(seen) < 5 {
		keys, err := w.c.Changed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			seen[k] = true
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if keys, err := w.c.Changed(ctx); err == nil {
		t.Errorf("changed without a reason: %v", keys)
	}
	w.scale("s3", 1)
	w.untilState("s3", "Warm")
	for warm := false; !warm; {
		keys, err := w.c.Changed(t.Context())
		if err != nil || !slices.Equal(keys, []v1alpha1.Key{"default/s3"}) {
			t.Fatalf("changed: %v, %v", keys, err)
		}
		st, _ := w.c.StatusOf(keys[0])
		warm = st.Service.Status.State == "Warm" && st.Serving == 1 && st.Desired == 1
	}
}
