// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestLife(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.TargetPort = 8081 }), newService("b"))
	a := w.vip("a")
	if w.state("a") != "Cold" || w.status("a").Service.Status.Replicas != 0 {
		t.Fatalf("not cold in the begin: %+v", w.status("a"))
	}
	w.d.syn(a)
	w.d.syn(a) // another client: still one wake
	w.untilState("a", "Warm")
	w.until("served", func() bool { return w.d.pods(a) == " serving" })
	if b := w.d.backend(a, 0); b.Addr.Port() != 8081 || b.Node != "n1" || b.Netns == "" || b.PodID != wireID("a-1") {
		t.Errorf("backend %+v", b)
	}
	if _, started, _ := w.rt.state(); len(started) != 1 {
		t.Errorf("started %v for one wake", started)
	}
	st := w.status("a")
	if st.Service.Status.Replicas != 1 || st.Service.Status.LatestRequest == nil || len(st.Pods) != 1 || st.Pods[0].State != "serving" {
		t.Errorf("status %+v", st)
	}
	w.d.send(&wire.Trace{Service: a, PodID: wireID("a-1"), Released: monotime.Now(), FirstSYNACK: monotime.Now(), ReleasedN: 2})
	w.until("the waterfall is whole", func() bool {
		ws := w.c.Wakes("default/a")
		_, ok := ws[0].At(lifecycle.PhaseFirstSYNACK)
		return ok && ws[0].Result == lifecycle.ResultWarm && ws[0].Released == 2 && !ws[0].Start.IsZero() && len(ws[0].Phases) == 10
	})

	// Idle: the packet that comes in the last moment keeps it awake; without one it sleeps.
	// When the machine booted: that may be less than an hour ago, and no time is negative.
	last := monotime.Time(1)
	w.d.send(&wire.Idle{Service: a, LastPacket: last}) // the daemon's last packet is newer
	w.until("drained and taken back", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return strings.HasSuffix(strings.Join(w.d.history, "|"), " serving|"+a.String()+": draining|"+a.String()+": serving")
	})
	w.d.set(func(d *fakeDaemon) { d.last[a] = last })
	w.d.send(&wire.Idle{Service: a, LastPacket: last})
	w.untilState("a", "Cold")
	w.until("nothing is left", func() bool { return w.d.pods(a) == "" && len(w.status("a").Pods) == 0 })
	if running, _, stopped := w.rt.state(); len(running) != 0 || len(stopped) != 1 || w.rt.grace[0] != 30*time.Second {
		t.Errorf("running %v, stopped %v after %v", running, stopped, w.rt.grace)
	}
	w.warm("a")
	if n := len(w.c.Wakes("")); n != 2 {
		t.Errorf("%d wakes, want 2", n)
	}
}

// TestLatestRequest: a service that was woken by its number of pods, and that nobody used, has seen no packet.
func TestLatestRequest(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.vip("a")
	if err := w.c.Scale("default/a", 1, "somebody asked"); err != nil {
		t.Fatal(err)
	}
	w.untilState("a", "Warm")
	began := monotime.Now()
	w.d.set(func(d *fakeDaemon) { d.last[a] = began })
	w.d.send(&wire.Idle{Service: a, LastPacket: began})
	w.untilState("a", "Cold")
	if l := w.status("a").Service.Status.LatestRequest; l != nil {
		t.Errorf("the latest request was at %v; there was none", l)
	}
	w.d.syn(a)
	w.untilState("a", "Warm")
	if w.status("a").Service.Status.LatestRequest == nil {
		t.Error("no time of the latest request after a SYN")
	}
}

func TestSleep(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	gate := make(chan struct{})
	w.rt.onStop = func(context.Context, string) error { <-gate; return nil }
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := w.c.Sleep(ctx, "default/a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Sleep while the pod does not end: %v", err)
	}
	w.d.syn(a) // a client comes while it goes down
	done := make(chan error)
	go func() { done <- w.c.Sleep(context.Background(), "default/a") }()
	w.until("somebody waits", func() (waits bool) {
		w.c.loop.call(func() { waits = len(w.c.engine.table.services["default/a"].sleepers) == 1 })
		return waits
	})
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if running, _, stopped := w.rt.state(); len(stopped) != 1 || len(running) > 1 {
		t.Errorf("asleep with running %v, stopped %v", running, stopped)
	}
	w.untilState("a", "Warm") // the client is served all the same
	if err := w.c.Sleep(context.Background(), "default/zzz"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("Sleep of no service: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	w := newWorld(t, nil)
	w.rt.onStart = func(_ context.Context, s *v1alpha1.WangellService) error {
		return fmt.Errorf("service %s: %w", runtime.KeyOf(s), errScript)
	}
	w.apply(newService("a"))
	a := w.vip("a")
	w.d.syn(a)
	w.until("refused", func() bool { return len(w.d.reasons(a)) == 1 })
	if got := w.d.reasons(a)[0]; got != errScript.Error() {
		t.Errorf("refused because %q", got)
	}
	st := w.status("a").Service.Status
	if st.State != "Failed" || st.Message != errScript.Error() || st.Replicas != 0 {
		t.Errorf("status %+v", st)
	}
	w.d.syn(a) // at once
	w.until("refused again", func() bool { return len(w.d.reasons(a)) == 2 })
	w.d.syn(a) // backoff
	w.until("refused without a try", func() bool { return len(w.d.reasons(a)) == 3 })
	if got := w.d.reasons(a)[2]; !strings.Contains(got, "next try in 1s") {
		t.Errorf("refused because %q", got)
	}
	if ws := w.c.Wakes("default/a"); len(ws) != 2 || ws[1].Result != lifecycle.ResultFailed || ws[1].Reason != errScript.Error() {
		t.Errorf("wakes %+v", ws)
	}
}

func TestRuntimeAwayForAMoment(t *testing.T) {
	w := newWorld(t, nil)
	var tries atomic.Int32
	w.rt.onStart = func(context.Context, *v1alpha1.WangellService) error {
		if tries.Add(1) <= 2 {
			return fmt.Errorf("start: %w", runtime.ErrUnavailable)
		}
		return nil
	}
	w.apply(newService("a"))
	a := w.warm("a")
	if r := w.d.reasons(a); len(r) != 0 {
		t.Errorf("refused: %v", r)
	}
}

func TestExitWhileWaking(t *testing.T) {
	w := newWorld(t, nil)
	w.d.set(func(d *fakeDaemon) { d.mute = true })
	w.apply(newService("a"))
	a := w.vip("a")
	w.d.syn(a)
	w.until("started", func() bool { return len(w.status("a").Pods) == 1 && w.status("a").Pods[0].ID != "" })
	w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 3, LogTail: strings.Repeat("no ", 200)}
	w.until("refused", func() bool { return len(w.d.reasons(a)) == 1 })
	if got := w.d.reasons(a)[0]; !strings.HasPrefix(got, "process exited with code 3: no no") || len(got) > 200 {
		t.Errorf("refused because %q", got)
	}
	w.until("the remains are removed", func() bool { r, _, _ := w.rt.state(); return len(r) == 0 })
}

func TestNeverListens(t *testing.T) {
	w := newWorld(t, nil)
	w.d.set(func(d *fakeDaemon) { d.mute = true })
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.WakeTimeout = 1 }))
	a := w.vip("a")
	w.d.syn(a)
	w.until("refused", func() bool { return len(w.d.reasons(a)) == 1 })
	if got := w.d.reasons(a)[0]; got != "process runs but nothing listens on port 8080 after 1s: check spec.targetPort, "+
		"and that the process does not listen on 127.0.0.1 only" {
		t.Errorf("refused because %q", got)
	}
	w.until("stopped", func() bool { r, _, _ := w.rt.state(); return len(r) == 0 })
	w.d.set(func(d *fakeDaemon) { d.mute = false })
	w.warm("a")
}

// A start that hangs is given up at the deadline, and the next one is not in its way.
func TestStartHangs(t *testing.T) {
	w := newWorld(t, nil)
	var first atomic.Bool
	w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error {
		if first.CompareAndSwap(false, true) {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.WakeTimeout = 1 }))
	a := w.vip("a")
	w.d.syn(a)
	w.until("refused", func() bool { return len(w.d.reasons(a)) == 1 })
	if got := w.d.reasons(a)[0]; !strings.HasPrefix(got, "no process after 1s") {
		t.Errorf("refused because %q", got)
	}
	w.warm("a")
}

func TestCrashWhileWarm(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	events := w.c.Subscribe(t.Context())
	w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 139}
	w.untilState("a", "Cold")
	for e := range events {
		if e.Kind == EventReport && e.Severity == SeverityError {
			if e.Text != "crashed: process was ended by signal 11; the next connection request wakes it "+
				"again" || e.Service != "default/a" {
				t.Errorf("event %+v", e)
			}
			break
		}
	}
	w.d.syn(a)
	w.untilState("a", "Warm")
	w.until("only the new pod is left", func() bool { return w.d.pods(a) == " serving" })
	if running, _, _ := w.rt.state(); len(running) != 1 || running[0] != "a-2" {
		t.Errorf("running %v", running)
	}
}

func TestUpdate(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	w.d.set(func(d *fakeDaemon) { d.open = 1 })

	// What pods do not need changes only the table.
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.IdleTimeout = 7 }))
	w.until("the daemon knows the timeout", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return w.d.table[a].IdleSeconds == 7
	})
	newer := newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"-v"}; s.TargetPort = 9090 })
	w.apply(newer)
	w.until("switched", func() bool { return w.d.pods(a) == " draining serving" })
	if _, started, stopped := w.rt.state(); len(started) != 2 || len(stopped) != 0 {
		t.Errorf("started %v, stopped %v", started, stopped)
	}
	if b := w.d.backend(a, 0); b.Addr.Port() != 8080 {
		t.Errorf("the old pod's port became %v", b.Addr)
	}
	if b := w.d.backend(a, 1); b.Addr.Port() != 9090 {
		t.Errorf("the new pod's port is %v", b.Addr)
	}
	if w.state("a") != "Warm" {
		t.Errorf("state %s", w.state("a"))
	}
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("a-1"), OpenFlows: 0, NewFlows: 9, LastPacket: monotime.Now()}}})
	w.until("the old pod is gone", func() bool { return w.d.pods(a) == " serving" })
	if running, _, _ := w.rt.state(); len(running) != 1 || running[0] != "a-2" {
		t.Errorf("running %v", running)
	}
	// Applied once more, nothing happens.
	w.apply(newer)
	if _, started, _ := w.rt.state(); len(started) != 2 {
		t.Errorf("started %v", started)
	}
}

func TestRemove(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"))
	a, b := w.warm("a"), w.vip("b")
	w.apply()
	w.until("the table is empty", func() bool { return !w.d.has(a) && !w.d.has(b) })
	w.until("nothing runs", func() bool { r, _, _ := w.rt.state(); return len(r) == 0 && len(w.c.Status()) == 0 })
	w.until("forgotten", func() bool { w.rt.mu.Lock(); defer w.rt.mu.Unlock(); return len(w.rt.forgot) == 2 })
	w.d.syn(a)
	w.until("refused", func() bool { r := w.d.reasons(a); return len(r) > 0 && r[len(r)-1] == "there is no such service" })

	// What comes back finds its address again.
	w.apply(newService("zz"), newService("b"))
	if got := w.vip("b"); got != b {
		t.Errorf("b had %v, now has %v", b, got)
	}
	if got := w.vip("zz"); got == a || got == b {
		t.Errorf("zz got %v, which is another's", got)
	}
}

func TestRemoveWhileWaking(t *testing.T) {
	w := newWorld(t, nil)
	w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error { <-ctx.Done(); return ctx.Err() }
	w.apply(newService("a"))
	a := w.vip("a")
	w.d.syn(a)
	w.untilState("a", "Waking")
	w.apply()
	w.until("refused and gone", func() bool { return len(w.d.reasons(a)) == 1 && !w.d.has(a) })
	if got := w.d.reasons(a)[0]; got != "the service was removed" {
		t.Errorf("refused because %q", got)
	}
}

// A service that is applied again while its pod still goes down begins anew after it.
func TestRemoveAndAddAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	gate := make(chan struct{})
	w.rt.onStop = func(context.Context, string) error { <-gate; return nil }
	w.apply()
	w.untilState("a", "Stopping")
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Port = 81 }))
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.Port = 82 }))
	if w.state("a") != "Stopping" {
		t.Errorf("state %s", w.state("a"))
	}
	close(gate)
	again := netip.AddrPortFrom(a.Addr(), 82)
	w.until("it is back", func() bool { return w.d.has(again) && !w.d.has(a) && w.state("a") == "Cold" })
	w.warm("a")
}

func TestAddressMoves(t *testing.T) {
	at := func(ip string) func(*v1alpha1.WangellServiceSpec) {
		return func(s *v1alpha1.WangellServiceSpec) { s.Address = ip }
	}
	w := newWorld(t, nil)
	w.apply(newService("a", at("10.46.100.10")), newService("b", at("10.46.100.20")))
	a, b := w.warm("a"), w.warm("b")
	if a != netip.MustParseAddrPort("10.46.100.10:80") {
		t.Fatalf("a has %v", a)
	}
	w.apply(newService("a", at("10.46.100.20")), newService("b", at("10.46.100.10")))
	w.until("the pods changed places", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		x, y := w.d.backends[a], w.d.backends[b]
		return len(x.Pods) == 1 && len(y.Pods) == 1 && x.Pods[0].PodID == wireID("b-2") && y.Pods[0].PodID == wireID("a-1")
	})
	// A new service takes the address of one that is still going down.
	gate := make(chan struct{})
	w.rt.onStop = func(context.Context, string) error { <-gate; return nil }
	w.apply(newService("b", at("10.46.100.10")), newService("c", at("10.46.100.20")))
	w.until("c has a's address", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return w.d.table[b].Name == "default/c" && len(w.d.backends[b].Pods) == 0
	})
	w.warm("c")
	close(gate)
	w.until("a is gone", func() bool { return len(w.c.Status()) == 2 })
	if !w.d.has(b) || w.d.pods(b) != " serving" {
		t.Error("the end of a took c's address from the table")
	}
}

func TestAdopt(t *testing.T) {
	w := newWorld(t, nil)
	keep, other := newService("keep"), newService("other")
	w.rt.add(keep)  // keep-1
	w.rt.add(keep)  // keep-2, the newest
	w.rt.add(other) // other-3
	w.rt.add(newService("gone"))
	dead := w.rt.add(newService("dead"))
	dead.Started = 0
	w.rt.pods[dead.ID] = dead
	w.apply(keep, newService("other", func(s *v1alpha1.WangellServiceSpec) { s.Args = []string{"new"} }), newService("dead"))
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

// A controller that ends while clients wait refuses nobody: they wait for the next one.
func TestDetachDuringWake(t *testing.T) {
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
			t.Errorf("told: %+v", e)
		}
	}
	if r := w.d.reasons(a); len(r) > 0 {
		t.Errorf("refused: %q", r)
	}
}

// The next controller takes over what the one before left, and daemons see no older generation.
func TestDetachAndAdopt(t *testing.T) {
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

func TestDaemonRestarts(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"))
	a := w.warm("a")
	w.d.client.Close()
	w.d = w.daemon()
	w.until("told again", func() bool { return w.d.pods(a) == " serving" })
	// One that speaks of a pod that is none is told what there is.
	w.d.set(func(d *fakeDaemon) { clear(d.backends) })
	b := w.vip("b")
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: b, PodID: 4711}}})
	w.until("told that there is none", func() bool {
		w.d.mu.Lock()
		defer w.d.mu.Unlock()
		return w.d.backends[b] != nil && len(w.d.backends[b].Pods) == 0
	})
	w.d.send(&wire.Listening{Service: a, PodID: 4711})
	w.until("told which there are", func() bool { return w.d.pods(a) == " serving" })
}

func TestStopIsTriedAgain(t *testing.T) {
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

func TestConcurrentStarts(t *testing.T) {
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

// A wake does not wait for images of others that are being fetched, and progress is told.
func TestPrepare(t *testing.T) {
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
		if e.Kind == EventPull {
			if e.Image != "registry.example/slow:1" || e.Done != 10 || e.Total != 100 || e.Service != "default/slow" {
				t.Errorf("event %+v", e)
			}
			break
		}
	}
	close(pulling)
	w.until("the message tells", func() bool { return w.status("missing").Service.Status.Message == errScript.Error() })
	w.until("prepared", func() bool { w.rt.mu.Lock(); defer w.rt.mu.Unlock(); return len(w.rt.prepared) == 2 })
}

// Wakes that wait for a registry do not take the place of those that could start.
func TestPullTakesNoSlot(t *testing.T) {
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

func TestShutdown(t *testing.T) {
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

func TestShutdownTimesOut(t *testing.T) {
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

func TestUpdateRefusesWhatCannotBe(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	at := func(s *v1alpha1.WangellServiceSpec) { s.Address = "10.46.100.2" } // that of a
	cases := map[string][]*v1alpha1.WangellService{
		"a service given twice":         {newService("a"), newService("a")},
		"an address in use":             {newService("a"), newService("b", at)},
		"an address given twice":        {newService("b", at), newService("c", at)},
		"an address that is not IPv4":   {newService("d", func(s *v1alpha1.WangellServiceSpec) { s.Address = "fd00::1" })},
		"an address kept by its holder": {newService("b", at), newService("a")},
	}
	for name, services := range cases {
		if err := w.tryApply(services...); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if st := w.c.Status(); len(st) != 1 || st[0].Service.Name != "a" {
			t.Errorf("%s: %d services after a refusal", name, len(st))
		}
	}
}

func TestResolve(t *testing.T) {
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

func TestReady(t *testing.T) {
	w := newWorld(t, nil)
	if w.c.Ready() == nil {
		t.Error("ready without services")
	}
	w.apply()
	w.until("ready", func() bool { return w.c.Ready() == nil })
	w.d.client.Close()
	w.until("not ready without a daemon", func() bool { return w.c.Ready() != nil })
}

// TestLeast: a service that never sleeps has its pod without a client, and does not start another if one runs already.
func TestLeast(t *testing.T) {
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
