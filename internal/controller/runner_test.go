// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

func TestStopIsRetried(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	w.warm("a")
	var tries atomic.Int32
	w.rt.onStop = func(context.Context, string) error {
		if tries.Add(1) < 3 {
			return errors.New("cannot kill")
		}
		return nil
	}
	if err := w.c.Sleep(t.Context(), "default/a"); err != nil {
		t.Error(err)
	}
	if n := tries.Load(); n != 3 {
		t.Errorf("%d tries", n)
	}
}

func TestConcurrentStartsAreBounded(t *testing.T) {
	const limit, services = 3, 20
	w := newWorld(t, func(c *Config) { c.MaxConcurrentStarts = limit })
	var now, most atomic.Int32
	full := make(chan struct{})
	w.rt.onStart = func(context.Context, *v1alpha1.WangellService) error {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if n == limit {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		<-full
		return nil
	}
	var all []*v1alpha1.WangellService
	for i := range services {
		all = append(all, newService(fmt.Sprint("s", i)))
	}
	w.apply(all...)
	for _, s := range all {
		w.d.syn(w.vip(s.Name))
	}
	for _, s := range all {
		w.untilState(s.Name, "Warm")
	}
	if n := most.Load(); n != limit {
		t.Errorf("%d starts at once, want %d", n, limit)
	}
}

// Progress is reported, too.
func TestImagesAreFetchedAheadWithoutDelayingWakes(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConcurrentPulls = 1 })
	events := w.c.Subscribe(t.Context())
	pulling := make(chan struct{})
	w.rt.onPrepare = func(ctx context.Context, s *v1alpha1.WangellService, p runtime.Progress) error {
		switch s.Name {
		case "slow":
			p(s.Spec.Image, 10, 100)
			select {
			case <-pulling:
			case <-ctx.Done():
			}
			return ctx.Err()
		case "missing":
			return fmt.Errorf("service default/missing: %w", errScript)
		}
		return nil
	}
	w.apply(newService("slow"), newService("missing"), newService("a"))
	w.warm("a")
	for e := range events {
		if e.Kind == status.EventPull {
			if e.Image != "registry.example/slow:1" || e.Done != 10 || e.Total != 100 || e.Service != "default/slow" {
				t.Errorf("event %+v", e)
			}
			break
		}
	}
	w.until("the message tells of the pull", func() bool {
		s := w.status("slow")
		return s.Pull != nil && s.Pull.Done == 10 && s.Pull.Total == 100 && strings.Contains(s.Service.Status.Message,
			`image "registry.example/slow:1" is being pulled (0.0 of 0.0 MB)`)
	})
	close(pulling)
	w.until("the pull is over", func() bool { return w.status("slow").Pull == nil })
	w.until("the message tells", func() bool { return w.status("missing").Service.Status.Message == errScript.Error() })
	w.until("prepared", func() bool { w.rt.mu.Lock(); defer w.rt.mu.Unlock(); return len(w.rt.prepared) == 2 })
}

// The user has loaded the image meanwhile.
func TestImageThatWasMissingIsForgottenOnceAPodRunsIt(t *testing.T) {
	w := newWorld(t, nil)
	var missing atomic.Bool
	missing.Store(true)
	w.rt.onPrepare = func(context.Context, *v1alpha1.WangellService, runtime.Progress) error {
		if missing.Load() {
			return errScript
		}
		return nil
	}
	w.apply(newService("a"))
	w.until("the message tells", func() bool { return w.status("a").Service.Status.Message == errScript.Error() })
	missing.Store(false)
	w.warm("a")
	if got := w.status("a").Service.Status.Message; got != "" {
		t.Errorf("message %q", got)
	}
}

func TestPullTakesNoSlotOfAStart(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConcurrentStarts = 1 })
	registry := make(chan struct{})
	w.rt.onPrepare = func(ctx context.Context, s *v1alpha1.WangellService, _ runtime.Progress) error {
		if s.Name != "slow" {
			return nil
		}
		select {
		case <-registry:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	w.apply(newService("slow"), newService("a"))
	slow := w.vip("slow")
	w.d.syn(slow)
	w.untilState("slow", "Waking")
	w.warm("a")
	close(registry)
	w.untilState("slow", "Warm")
}

func TestStartThatFailsAfterThePodListenedLeavesNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.vip("a")
	w.rt.onReturn = func() error { // the pod runs and listens, then the runtime is gone
		w.untilState("a", "Warm")
		return fmt.Errorf("start: %w", runtime.ErrUnavailable)
	}
	w.d.syn(a)
	w.until("its remains are stopped", func() bool {
		_, _, s := w.rt.state()
		return len(s) == 1 &&
			w.state("a") == "Cold"
	})
	if got := w.status("a").Service.Status.Message; got != "crashed: its start failed although it listened: start: "+
		"runtime not available" {
		t.Errorf("message %q", got)
	}
	w.until("no pod is left", func() bool { return len(w.status("a").Pods) == 0 })
	w.rt.onReturn = nil
	w.warm("a")
}

// A pod can listen before its start has returned. It has its grace period all the same, unless the start hangs.
func TestPodStoppedBeforeItsStartReturnsHasItsGrace(t *testing.T) {
	for _, c := range []struct {
		name  string
		hangs bool
		want  []time.Duration // the grace periods of Stop
	}{{"it returns", false, []time.Duration{30 * time.Second}}, {"it hangs", true, nil}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			w.apply(newService("a"))
			var start context.Context
			w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error { start = ctx; return nil }
			slept := make(chan error, 1)
			w.rt.onReturn = func() error {
				w.untilState("a", "Warm")
				go func() { slept <- w.c.Sleep(t.Context(), "default/a") }()
				w.until("the pod is to stop", func() (stopping bool) {
					w.c.loop.call(func() { p := w.c.engine.table.byRuntime["a-1"]; stopping = p != nil && p.stopping })
					return stopping
				})
				if c.hangs {
					<-start.Done()
				}
				return start.Err()
			}
			w.d.syn(w.vip("a"))
			if err := <-slept; err != nil {
				t.Error(err)
			}
			w.rt.mu.Lock()
			defer w.rt.mu.Unlock()
			if !slices.Equal(w.rt.grace, c.want) {
				t.Errorf("stopped with %v, want %v", w.rt.grace, c.want)
			}
		})
	}
}

// A process that ends because the runtime does is not the service's fault: the start is retried.
func TestExitBeforeStartReturnsIsJudgedByTheStart(t *testing.T) {
	for _, c := range []struct {
		name, state string
		err         error
	}{{"the runtime is gone", "Warm", fmt.Errorf("start: %w", runtime.ErrUnavailable)}, {"the process " +
		"crashed", "Failed", nil}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.d.set(func(d *fakeDaemon) { d.mute = true })
			w.apply(newService("a"))
			a := w.vip("a")
			w.rt.onReturn = func() error {
				w.rt.onReturn = nil
				w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 1, LogTail: "broken pipe"}
				w.until("the exit is known", func() (known bool) {
					w.c.loop.call(func() { p := w.c.engine.table.byRuntime["a-1"]; known = p != nil && p.early != nil })
					return known
				})
				w.d.set(func(d *fakeDaemon) { d.mute = c.err == nil })
				return c.err
			}
			w.d.syn(a)
			w.untilState("a", c.state)
		})
	}
}

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
		go func() { _ = w.c.Sleep(t.Context(), v1alpha1.Key("default/"+name)) }()
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
		go func() { _ = w.c.Sleep(t.Context(), v1alpha1.KeyOf(s)) }()
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
