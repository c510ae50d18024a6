// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

func TestServiceWakesServesAndSleeps(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.TargetPort, s.IdleTimeout = 8081, 10 }),
		newService("b"))
	a := w.vip("a")
	if w.state("a") != "Cold" || w.status("a").Service.Status.Replicas != 0 {
		t.Fatalf("not cold at the beginning: %+v", w.status("a"))
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
	if st.Service.Status.Replicas != 1 || st.Service.Status.LatestRequest == nil || len(st.Pods) != 1 ||
		st.Pods[0].State != "serving" {
		t.Errorf("status %+v", st)
	}
	w.d.send(&wire.Trace{Service: a, PodID: wireID("a-1"), Released: monotime.Now(), FirstSYNACK: monotime.Now(),
		ReleasedN: 2})
	w.until("the waterfall is whole", func() bool {
		ws := w.c.Wakes("default/a")
		_, ok := ws[0].At(lifecycle.PhaseFirstSYNACK)
		return ok && ws[0].Result == lifecycle.ResultWarm && ws[0].Released == 2 && !ws[0].Start.IsZero() &&
			len(ws[0].Phases) == 10
	})

	// A packet at the last moment keeps an idle service awake; without one it sleeps.
	// The time of the machine's boot: that may be less than an hour ago, and no time is negative.
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

// The service is woken by its number of pods, and not used.
func TestLatestRequestNeedsAPacket(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.vip("a")
	if err := w.c.Scale("default/a", 1, "tested"); err != nil {
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

func TestSleepWaitsUntilThePodsAreGone(t *testing.T) {
	w := newWorld(t, nil)
	service := newService("a")
	writes(&service.Spec) // so that the client waits until the pod is gone
	w.apply(service)
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
	w.until("Sleep waits", func() (waits bool) {
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

func TestWakeFailsWhenTheStartFails(t *testing.T) {
	w := newWorld(t, nil)
	w.rt.onStart = func(_ context.Context, s *v1alpha1.WangellService) error {
		return fmt.Errorf("service %s: %w", v1alpha1.KeyOf(s), errScript)
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
	if ws := w.c.Wakes("default/a"); len(ws) != 2 || ws[1].Result != lifecycle.ResultFailed ||
		ws[1].Reason != errScript.Error() {
		t.Errorf("wakes %+v", ws)
	}
}

func TestWakeSurvivesARuntimeThatIsAwayForAMoment(t *testing.T) {
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

func TestWakeFailsWhenTheProcessExits(t *testing.T) {
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

func TestWakeFailsWhenThePodNeverListens(t *testing.T) {
	w := newWorld(t, nil)
	w.d.set(func(d *fakeDaemon) { d.mute = true })
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.WakeTimeout = 1 }))
	a := w.vip("a")
	w.d.syn(a)
	w.until("refused", func() bool { return len(w.d.reasons(a)) == 1 })
	if got := w.d.reasons(a)[0]; got != "process runs but nothing listens on port 8080 for IPv4 after 1s: "+
		"check spec.targetPort, and that the process listens on 0.0.0.0 or [::], not on 127.0.0.1 or for IPv6 only" {
		t.Errorf("refused because %q", got)
	}
	w.until("stopped", func() bool { r, _, _ := w.rt.state(); return len(r) == 0 })
	w.d.set(func(d *fakeDaemon) { d.mute = false })
	w.warm("a")
}

// The message of the service has it while clients wait.
func TestWakeThatNothingAnswersSaysWhatListens(t *testing.T) {
	w := newWorld(t, nil)
	w.d.set(func(d *fakeDaemon) { d.mute = true })
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.WakeTimeout = 3600 }))
	a := w.vip("a")
	w.d.syn(a)
	w.until("starting", func() bool { return strings.Contains(w.d.pods(a), "starting") })
	sockets := &wire.Sockets{
		Service: a, PodID: w.d.backend(a, 0).PodID, At: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080")},
	}
	w.d.send(sockets)
	const want = "a process runs but listens on 127.0.0.1:8080, not on an address that clients reach: " +
		"make it listen on 0.0.0.0 or [::]"
	w.until("its message says so", func() bool { return w.status("a").Service.Status.Message == want })
	w.d.send(&wire.Listening{Service: a, PodID: sockets.PodID, At: monotime.Now()})
	w.until("warm", func() bool { return w.status("a").Service.Status.Message == "" })
}

// The next start is not delayed by it.
func TestStartThatHangsIsCancelledAtTheDeadline(t *testing.T) {
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

func TestCauseOfACrashIsTold(t *testing.T) {
	const crash = "crashed: process was ended by signal 9: "
	for _, c := range []struct{ cause, log, want string }{
		{"out of memory (no limit)", "loading\n", crash + "out of memory (no limit): loading; "},
		{"out of memory (no limit)", "", crash + "out of memory (no limit); "},
		{"", "loading\n", crash + "loading; "},
	} {
		w := newWorld(t, nil)
		w.apply(newService("a"))
		w.warm("a")
		events := w.c.Subscribe(t.Context())
		w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 137, Cause: c.cause, LogTail: c.log}
		for e := range events {
			if e.Kind == status.EventReport && e.Severity == status.SeverityError {
				if !strings.HasPrefix(e.Text, c.want) {
					t.Errorf("event %q, want %q", e.Text, c.want)
				}
				break
			}
		}
	}
}

// kubelet says why it has evicted a pod when nothing is left of it, and the next one may serve already.
func TestReasonOfAnEndReplacesACrashWhenThePodIsGone(t *testing.T) {
	const why = "pod a-1 was evicted by its node (Evicted: memory)"
	w := newWorld(t, nil)
	w.apply(newService("a"))
	w.warm("a")
	events := w.c.Subscribe(t.Context())
	w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a"}
	w.until("nothing is left of its pod", func() bool {
		st := w.status("a")
		return len(st.Pods) == 0 && st.Service.Status.Message == "crashed: process exited with code 0"
	})
	late := runtime.Exit{PodID: "a-1", Service: "default/a", Cause: why, Outside: true, Explains: true}
	another := late
	another.PodID = "a-0"
	w.rt.exits <- another
	w.rt.exits <- late
	w.until("the reason is told", func() bool { return w.status("a").Service.Status.Message == "ended: "+why })
	for e := range events {
		if e.Kind == status.EventReport && e.Severity == status.SeverityWarning {
			if e.Text != "why a pod crashed: "+why {
				t.Errorf("event %q", e.Text)
			}
			break
		}
	}
}

func TestCrashedServiceIsWokenAgain(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	a := w.warm("a")
	events := w.c.Subscribe(t.Context())
	w.rt.exits <- runtime.Exit{PodID: "a-1", Service: "default/a", Code: 139}
	w.untilState("a", "Cold")
	for e := range events {
		if e.Kind == status.EventReport && e.Severity == status.SeverityError {
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

// The daemon of another machine has another clock, which is estimated anew with each keepalive: the time of the same
// packet differs from message to message, by more the longer they are apart.
func TestServiceSleepsAlthoughTheClockOfItsNodeIsEstimatedAnew(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.IdleTimeout = 10 }))
	a := w.warm("a")
	last := monotime.Now()
	stats := func(open uint32, at monotime.Time) {
		w.d.send(&wire.Stats{Pods: []wire.PodStats{{
			Service: a, PodID: wireID("a-1"), NewFlows: 1, BytesIn: 9, OpenFlows: open, LastPacket: at,
		}}})
		w.until("its connections are known", func() bool { return w.status("a").Traffic.OpenFlows == open })
	}
	stats(1, last)
	stats(0, last.Add(-10*time.Microsecond)) // it has aged, without a packet
	w.d.set(func(d *fakeDaemon) { d.last[a] = last })
	w.d.send(&wire.Idle{Service: a, LastPacket: last.Add(-10 * time.Millisecond)})
	w.untilState("a", "Cold")
}

// A packet that came after the report of idleness counts.
func TestServiceThatIsUsedAgainDoesNotSleep(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a", func(s *v1alpha1.WangellServiceSpec) { s.IdleTimeout = 1 }))
	a := w.warm("a")
	last := monotime.Now().Add(-time.Second)
	for i, at := range []monotime.Time{last, last.Add(time.Second)} {
		w.d.send(&wire.Stats{Pods: []wire.PodStats{{
			Service: a, PodID: wireID("a-1"), NewFlows: uint64(i + 1), LastPacket: at,
		}}})
		w.until("its packet is known", func() bool { return w.status("a").Traffic.NewFlows == uint64(i+1) })
	}
	w.d.send(&wire.Idle{Service: a, LastPacket: last})
	w.d.send(&wire.Trace{Service: a, PodID: wireID("a-1"), ReleasedN: 7}) // comes after it
	w.until("the report is handled", func() bool { return w.status("a").LastWake.Released == 7 })
	if w.state("a") != "Warm" {
		t.Errorf("it is %s", w.state("a"))
	}
}
