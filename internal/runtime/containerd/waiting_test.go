// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/containerd/podinit"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// signals are those that a thread does not get: it blocks or ignores them, or has them pending. Some may be blocked or
// ignored by whatever runs the tests.
type signals struct{ blocked, ignored, pending uint64 }

func (s signals) count() int {
	return bits.OnesCount64(s.blocked) + bits.OnesCount64(s.ignored) + bits.OnesCount64(s.pending)
}

// signalsOf returns the signals of the thread of a pod's program that misses the fewest. Go's runtime blocks signals in
// other threads, for moments or for good.
func signalsOf(t *testing.T, p runtime.Pod) signals {
	t.Helper()
	var seen []signals
	for _, pid := range cgroupPids(t, p.Cgroup) {
		threads, err := filepath.Glob("/proc/" + pid + "/task/*/status")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			text, _ := os.ReadFile(thread)
			lines := statusLines(string(text))
			if lines["Name"] != "program" {
				continue
			}
			var sets [4]uint64
			for i, name := range []string{"SigBlk", "SigIgn", "SigPnd", "ShdPnd"} {
				if sets[i], err = strconv.ParseUint(lines[name], 16, 64); err != nil {
					t.Fatal(err)
				}
			}
			seen = append(seen, signals{blocked: sets[0], ignored: sets[1], pending: sets[2] | sets[3]})
		}
	}
	if len(seen) == 0 {
		t.Fatalf("%s: its program does not run", p.ID)
	}
	return slices.MinFunc(seen, func(a, b signals) int { return a.count() - b.count() })
}

// What programs see, and the signals that reach them, does not depend on whether their pod was prepared.
func TestAPodIsTheSameWhetherItWasPreparedOrNot(t *testing.T) {
	r := startWithProbe(t, unready(t))
	for name, change := range map[string]func(*v1alpha1.WangellServiceSpec){
		"plain": func(*v1alpha1.WangellServiceSpec) {},
		"init":  func(s *v1alpha1.WangellServiceSpec) { s.Init = ptr(true) },
		"user": func(s *v1alpha1.WangellServiceSpec) {
			s.Command, s.Args, s.WorkingDir = []string{"program"}, []string{"found in PATH"}, "/etc"
			s.Env = []corev1.EnvVar{{Name: "PATH", Value: "/nowhere:/"}}
			s.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(1234)), ReadOnlyRootFilesystem: ptr(true)}
		},
		"privileged": func(s *v1alpha1.WangellServiceSpec) {
			s.SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
		},
	} {
		var reports [2]runtimetest.Report
		var missed signals
		for i := range int32(2) {
			s := prepared(name, i)
			change(&s.Spec)
			if err := r.Prepare(t.Context(), s, nil); err != nil {
				t.Fatal(err)
			}
			awaitPrepared(t, r, s)
			p, err := r.Start(t.Context(), s, runtime.StartHooks{})
			if err != nil {
				t.Fatal(err)
			}
			got := runtimetest.Look(t, p)
			if i == 0 {
				missed = signalsOf(t, p)
			}
			eventually(t, func() error {
				if now := signalsOf(t, p); now != missed {
					return fmt.Errorf("%s, prepared: %d: it does not get the signals %+v, want %+v", name, i, now, missed)
				}
				return nil
			})
			if err := r.Stop(t.Context(), p.ID, grace); err != nil {
				t.Fatal(err)
			}
			if e := runtimetest.NextExit(t, r, p.ID); e.Code != 0 {
				t.Errorf("%s, prepared: %d: %+v", name, i, e)
			}
			got.Hosts, got.Addresses, got.Mounts, got.Cgroup = "", nil, "", "" // of one pod
			got.PID = min(got.PID, 2)                                          // 1 without init
			reports[i] = got
			if err := r.Forget(t.Context(), v1alpha1.KeyOf(s)); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(reports[0], reports[1]) {
			t.Errorf("%s:\n%+v, prepared\n%+v", name, reports[0], reports[1])
		}
	}
}

func TestAMissingProgramIsNamedWhetherThePodWasPreparedOrNot(t *testing.T) {
	r := startWithProbe(t, unready(t))
	missing := prepared("missing", 1)
	missing.Spec.Command = []string{"/nowhere"}
	says := func(text string) {
		for _, want := range []string{runtimetest.ProbeTag, "/nowhere", "spec.command"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in %q", want, text)
			}
		}
	}
	if _, err := r.Start(t.Context(), missing, runtime.StartHooks{}); err == nil {
		t.Error("runc has started it")
	} else {
		says(err.Error())
	}
	folder := prepared("folder", 1)
	folder.Spec.Command = []string{"/etc"}
	for s, code := range map[*v1alpha1.WangellService]uint32{missing: podinit.NotFound, folder: podinit.CannotRun} {
		if err := r.Prepare(t.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
		awaitPrepared(t, r, s)
		p, err := r.Start(t.Context(), s, runtime.StartHooks{})
		if err != nil {
			t.Fatal(err)
		}
		exit := runtimetest.NextExit(t, r, p.ID)
		if exit.Code != code {
			t.Errorf("%+v", exit)
		}
		if s == missing {
			says(exit.Cause)
		}
		if err := r.Stop(t.Context(), p.ID, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOnlyTheProcessItselfSaysThatItsProgramCouldNotRun(t *testing.T) {
	const says = podinit.Complaint + "/x: no such program in the image\n"
	for _, test := range []struct {
		exit runtime.Exit
		want string
	}{
		{runtime.Exit{Code: 127, LogTail: "before\n" + says},
			`image "i:v1" cannot run /x: no such program in the image: correct spec.command`},
		{runtime.Exit{Code: 126, LogTail: podinit.Complaint + "/x: permission denied\n"},
			`image "i:v1" cannot run /x: permission denied: correct spec.command`},
		{runtime.Exit{Code: 1, LogTail: says}, ""},
		{runtime.Exit{Code: 127, LogTail: says + "more\n"}, ""},
		{runtime.Exit{Code: 127, LogTail: "sh: not found\n"}, ""},
		{runtime.Exit{Code: 127}, ""},
	} {
		if got := notRun("i:v1", test.exit); got != test.want {
			t.Errorf("%+v: %q", test.exit, got)
		}
	}
}

func TestAProcessWaitsIfItHasBlockedItsSignals(t *testing.T) {
	status := func(name, state, blocked string) string {
		return "Name:\t" + name + "\nState:\t" + state + "\nShdPnd:\t0000000000000000\nSigBlk:\t" + blocked + "\n"
	}
	const name, sleeping, before, during = ".wangell-wait", "S (sleeping)", "fffffffffffbfeff", "fffffffffffbfcff"
	for what, test := range map[string]struct {
		status string
		want   bool
	}{
		"it waits":               {status(name, sleeping, during), true},
		"it is about to":         {status(name, "R (running)", before), true},
		"it has just begun":      {status(name, "R (running)", "0000000000000000"), false},
		"runc":                   {status("runc:[2:INIT]", sleeping, during), false},
		"the program":            {status("program", sleeping, "0000000000000000"), false},
		"the program blocks all": {status("program", sleeping, before), false},
		"it has ended":           {status(name, "Z (zombie)", during), false},
		"it is stopped":          {status(name, "T (stopped)", during), false},
		"no such process":        {"", false},
	} {
		if got := inWait(test.status); got != test.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}
