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

// A thread that starts blocks all signals for a moment, and one that ends is gone while it is looked at.
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

func TestSignalsThatPID1WouldDrop(t *testing.T) {
	status := func(blocked, ignored, caught string) string {
		return "Name:\tx\nNStgid:\t4711\t1\nSigBlk:\t" + blocked + "\nSigIgn:\t" + ignored + "\nSigCgt:\t" + caught + "\n"
	}
	const none, term, rt3 = "0000000000000000", "0000000000004000", "0000001000000000"
	for name, test := range map[string]struct {
		status string
		signal unix.Signal
		want   bool
	}{
		"no handler":           {status(none, none, none), unix.SIGTERM, true},
		"another handler":      {status(none, none, rt3), unix.SIGTERM, true},
		"a handler":            {status(none, none, term), unix.SIGTERM, false},
		"ignored":              {status(none, term, none), unix.SIGTERM, false},
		"blocked":              {status(term, none, none), unix.SIGTERM, false},
		"real-time":            {status(none, none, term), 37, true},
		"real-time, a handler": {status(none, none, rt3), 37, false},
		"harmless":             {status(none, none, none), unix.SIGWINCH, false},
		"not PID 1":            {strings.Replace(status(none, none, none), "\t1\n", "\t7\n", 1), unix.SIGTERM, false},
		"no such line":         {"NStgid:\t1\n", unix.SIGTERM, false},
		"not a number":         {status(none, none, "x"), unix.SIGTERM, false},
		"not a signal":         {status(none, none, none), 0, false},
	} {
		if got := dropped(test.status, test.signal); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
