// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// grace is so long that a test that waited for it would fail by its time limit.
const grace = time.Hour

// stopped starts a pod, stops it, and returns the report of its program and its exit.
func stopped(t *testing.T, r *Runtime, s *v1alpha1.WangellService) (runtimetest.Report, runtime.Exit) {
	t.Helper()
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	report := runtimetest.Look(t, p)
	if err := r.Stop(t.Context(), p.ID, grace); err != nil {
		t.Fatal(err)
	}
	return report, runtimetest.NextExit(t, r, p.ID)
}

// The kernel drops a signal that PID 1 has no handler for, so the program would run on until its grace period ends.
func TestProgramWithoutHandlerEndsAtOnce(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	report, exit := stopped(t, r, runtimetest.Service("unhandled", "DEFAULT_TERM", "yes"))
	if report.PID != 1 || exit.Code != 128+9 {
		t.Errorf("PID %d ended with %d, want PID 1 and %d", report.PID, exit.Code, 128+9)
	}
	report, exit = stopped(t, r, runtimetest.Service("handled"))
	if report.PID != 1 || exit.Code != 0 || !strings.HasSuffix(exit.LogTail, "probe: stopped\n") {
		t.Errorf("with a handler: PID %d, %+v", report.PID, exit)
	}
}

// A thread blocks all signals for a moment when it starts or starts another, and one that ends is gone while it is
// looked at.
func TestThreadsThatComeAndGoHandleNoSignal(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	p, err := r.Start(t.Context(), runtimetest.Service("threads", "DEFAULT_TERM", "threads"), runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	got, err := r.client.TaskService().Get(t.Context(), &tasks.GetRequest{ContainerID: p.ID})
	if err != nil {
		t.Fatal(err)
	}
	for look := range 200 {
		if !endsByDefault(got.Process.Pid, unix.SIGTERM) {
			t.Fatalf("after %d looks, it counts as one that handles the signal", look)
		}
	}
}

func TestStopSignalOfTheManifest(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	for text, number := range map[string]string{
		"SIGRTMIN+3": "signal 37", "INT": "interrupt", "12": "user defined signal 2",
	} {
		s := runtimetest.Service("signalled", "TELL_SIGNALS", "yes")
		s.Spec.StopSignal = text
		if _, exit := stopped(t, r, s); exit.Code != 0 || !strings.HasSuffix(exit.LogTail, "probe: "+number+"\n") {
			t.Errorf("stopSignal %s: %+v", text, exit)
		}
	}
}

func TestInitPassesSignalsOnAndReaps(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	yes, high := true, int64(1234)
	s := runtimetest.Service("with-init")
	s.Spec.Init = &yes
	report, exit := stopped(t, r, s)
	if report.PID == 1 || exit.Code != 0 || !strings.HasSuffix(exit.LogTail, "probe: stopped\n") {
		t.Errorf("with a handler: PID %d, %+v", report.PID, exit)
	}
	s = runtimetest.Service("with-init-unhandled", "DEFAULT_TERM", "yes")
	s.Spec.Init = &yes
	s.Spec.SecurityContext = &corev1.SecurityContext{RunAsUser: &high}
	if report, exit = stopped(t, r, s); report.PID == 1 || report.UID != int(high) || exit.Code != 128+15 {
		t.Errorf("without one: PID %d of user %d, %+v", report.PID, report.UID, exit)
	}

	s = runtimetest.Service("with-init-no-program")
	s.Spec.Init, s.Spec.Command = &yes, []string{"no-such-program"}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	exit = runtimetest.NextExit(t, r, p.ID)
	if exit.Code != 127 || !strings.Contains(exit.LogTail, "cannot run no-such-program: no such program in the image") {
		t.Errorf("a missing program: %+v", exit)
	}

	s = runtimetest.Service("with-init-exits")
	s.Spec.Init = &yes
	if p, err = r.Start(t.Context(), s, runtime.StartHooks{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	go runtimetest.Call(p, "/exit", url.Values{"code": {"7"}})
	if exit = runtimetest.NextExit(t, r, p.ID); exit.Code != 7 {
		t.Errorf("asked to exit with 7: %+v", exit)
	}
}

// Programs like tini block all signals and fetch them with sigwait, during which the kernel shows no blocked signal.
func TestThreadThatWaitsForSignals(t *testing.T) {
	for text, want := range map[string]bool{
		sigwaits[0] + " 0x7ffc 0x0 0x0 0x8 0x0 0x0 0x7ffc 0x40\n": true,
		"232 0x4 0x7ffc 0x1 0xffff 0x0 0x0 0x7ffc 0x40\n":         false,
		"running\n": false,
	} {
		if got := inSigwait(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

func TestWhatThreadsDoWithASignalThatPID1WouldDrop(t *testing.T) {
	const none, term, rt3 = "0000000000000000", "0000000000004000", "0000001000000000"
	reads, fetches := "0 0x4 0x7ffc\n", sigwaits[0]+" 0x7ffc 0x0\n"
	status := func(state, switches, blocked, ignored, caught string) string {
		return "Name:\tx\nState:\t" + state + "\nNStgid:\t4711\t1\nSigBlk:\t" + blocked + "\nSigIgn:\t" + ignored +
			"\nSigCgt:\t" + caught + "\nvoluntary_ctxt_switches:\t" + switches + "\n"
	}
	steady := func(blocked, ignored, caught string) string {
		return status("S (sleeping)", "7", blocked, ignored, caught)
	}
	idle, blocks := steady(none, none, none), steady(term, none, none)
	starts := status("R (running)", "7", term, none, none)
	other := strings.Replace(idle, "\t1\n", "\t7\n", 1)
	for name, test := range map[string]struct {
		before, call, after string
		signal              unix.Signal
		want                view
	}{
		"no handler":           {idle, reads, idle, unix.SIGTERM, open},
		"it runs":              {idle, "running\n", idle, unix.SIGTERM, open},
		"another handler":      {steady(none, none, rt3), reads, steady(none, none, rt3), unix.SIGTERM, open},
		"a handler":            {steady(none, none, term), reads, steady(none, none, term), unix.SIGTERM, unclear},
		"a handler since":      {idle, reads, steady(none, none, term), unix.SIGTERM, unclear},
		"ignored":              {steady(none, term, none), reads, steady(none, term, none), unix.SIGTERM, unclear},
		"blocked":              {blocks, reads, blocks, unix.SIGTERM, waits},
		"another one blocked":  {blocks, reads, blocks, unix.SIGINT, open},
		"in sigwait":           {idle, fetches, idle, unix.SIGTERM, waits},
		"out of it and back":   {idle, "running\n", status("S (sleeping)", "8", none, none, none), unix.SIGTERM, unclear},
		"into it":              {blocks, fetches, idle, unix.SIGTERM, unclear},
		"out of it":            {idle, reads, blocks, unix.SIGTERM, unclear},
		"it starts a thread":   {starts, reads, starts, unix.SIGTERM, unclear},
		"real-time":            {steady(none, none, term), reads, steady(none, none, term), 37, open},
		"real-time, a handler": {steady(none, none, rt3), reads, steady(none, none, rt3), 37, unclear},
		"harmless":             {idle, reads, idle, unix.SIGWINCH, unclear},
		"not PID 1":            {other, reads, other, unix.SIGTERM, unclear},
		"no such line":         {"NStgid:\t1\n", reads, "NStgid:\t1\n", unix.SIGTERM, unclear},
		"not a number":         {steady(none, none, "x"), reads, steady(none, none, "x"), unix.SIGTERM, unclear},
		"not a signal":         {idle, reads, idle, 0, unclear},
	} {
		if got := viewOf(test.before, test.call, test.after, test.signal); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestGracePeriodBeginsWithTheFirstSignal(t *testing.T) {
	const now = monotime.Time(1e12)
	g := gracePeriod{length: 10 * time.Second}
	if left := g.left(now); left != 10*time.Second {
		t.Errorf("before the signal: %v", left)
	}
	begin := now.Add(time.Minute) // all that time, others were stopped
	if left := g.begin(begin); left != 10*time.Second {
		t.Errorf("at the signal: %v", left)
	}
	if left := g.begin(begin.Add(4 * time.Second)); left != 6*time.Second {
		t.Errorf("at that of another container: %v", left)
	}
	if left := g.left(begin.Add(time.Minute)); left != 0 {
		t.Errorf("afterwards: %v", left)
	}
	if left := (&gracePeriod{}).begin(now); left != 0 {
		t.Errorf("without one: %v", left)
	}
}
