// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/containerd/podinit"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// prepared returns a service with prepared pods.
func prepared(name string, n int32, env ...string) *v1alpha1.WangellService {
	s := runtimetest.Service(name, env...)
	s.Spec.Sleep = &v1alpha1.Sleep{Prepared: n}
	return s
}

// preparedOf returns the prepared pods of a service, and whether all of them are of its spec.
func preparedOf(r *Runtime, s *v1alpha1.WangellService) (ids []string, pids []int, fit bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fit = true
	for _, p := range r.prepared.pods[v1alpha1.KeyOf(s)] {
		ids, pids = append(ids, p.ID), append(pids, int(p.pid))
		fit = fit && p.SpecHash == v1alpha1.Hash(&s.Spec)
	}
	return ids, pids, fit
}

// awaitPrepared waits until a service has the prepared pods that it asks for, and returns their IDs.
func awaitPrepared(t testing.TB, r *Runtime, s *v1alpha1.WangellService) (ids []string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		ids, _, fit := preparedOf(r, s)
		if fit && len(ids) == s.Spec.PreparedPods() {
			return ids
		}
	}
	t.Fatalf("service %s: its pods are never prepared", s.Name)
	return nil
}

func TestAPreparedPodOnlyHasToBeStarted(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	s := prepared("a", 2)
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	ids := awaitPrepared(t, r, s)
	if list, err := r.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("pods that are not started are listed: %v, %v", list, err)
	}
	_, pids, _ := preparedOf(r, s)
	logMemory(t, pids[0])
	begin := monotime.Now()
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if p.ID != ids[0] {
		t.Errorf("pod %s was started, prepared were %v", p.ID, ids)
	}
	if p.Started < begin || p.Started > monotime.Now() {
		t.Errorf("started at %v, after %v", p.Started, begin)
	}
	runtimetest.Look(t, p)
	if got := cgroupPids(t, p.Cgroup); !slices.Contains(got, strconv.Itoa(pids[0])) {
		t.Errorf("the processes are %v, the prepared one was %d", got, pids[0])
	}
	if next := awaitPrepared(t, r, s); slices.Contains(next, p.ID) || next[0] != ids[1] {
		t.Errorf("prepared are %v, before %v", next, ids)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := r.Forget(t.Context(), v1alpha1.KeyOf(s)); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, r)
	if after := podInventory(t, r); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}
}

// logMemory logs the memory of a prepared pod: its share (PSS) of what its waiting process and its shim have resident.
func logMemory(t *testing.T, pid int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	shim := string(bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])[1])
	for name, pid := range map[string]string{"process": strconv.Itoa(pid), "shim": shim} {
		text, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "Pss:") || strings.HasPrefix(line, "Rss:") {
				t.Logf("%s: %s", name, strings.TrimSpace(line))
			}
		}
	}
}

func TestPreparedPodsFollowTheirServiceAndItsProcesses(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	s := prepared("a", 1)
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	first := awaitPrepared(t, r, s)
	changed := prepared("a", 1, "X", "changed")
	if err := r.Prepare(t.Context(), changed, nil); err != nil {
		t.Fatal(err)
	}
	second := awaitPrepared(t, r, changed)
	if first[0] == second[0] {
		t.Error("the pod of the old spec is kept")
	}
	_, pids, _ := preparedOf(r, changed)
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for !ended(uint32(pids[0])) {
		time.Sleep(time.Millisecond)
	}
	p, err := r.Start(t.Context(), changed, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if p.ID == second[0] {
		t.Error("a pod whose process was killed is started")
	}
	runtimetest.Look(t, p)
	third := awaitPrepared(t, r, changed)
	_, pids, _ = preparedOf(r, changed)
	if err := unix.Kill(pids[0], podinit.Wake); err != nil { // not by the runtime
		t.Fatal(err)
	}
	for isWaiting(uint32(pids[0])) {
		time.Sleep(time.Millisecond)
	}
	if p, err = r.Start(t.Context(), changed, runtime.StartHooks{}); err != nil {
		t.Fatal(err)
	}
	if p.ID == third[0] {
		t.Error("a pod whose program runs already is started")
	}
	runtimetest.Look(t, p)
	awaitPrepared(t, r, changed)
	old := time.Now().Add(-preparedAge)
	r.mu.Lock()
	stale := r.prepared.pods[v1alpha1.KeyOf(s)][0]
	stale.made = old
	r.mu.Unlock()
	r.keeper.kick()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if ids := awaitPrepared(t, r, changed); ids[0] != stale.ID {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a pod is kept although it was prepared an hour ago")
		}
	}
}

func TestPreparedPodsHaveTheirOtherContainers(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	s := prepared("several", 1)
	s.Spec.InitContainers = []v1alpha1.Container{other("first", "EXIT", "0")}
	s.Spec.Containers = []v1alpha1.Container{other("second", "PORT", "8081")}
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	ids := awaitPrepared(t, r, s)
	if text := logOf(t, r, "default/several", "first"); text != "" {
		t.Errorf("an init container of a pod that is only prepared has run: %q", text)
	}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if p.ID != ids[0] {
		t.Errorf("pod %s was started, prepared was %v", p.ID, ids)
	}
	if text := logOf(t, r, "default/several", "first"); text != "probe: told to exit\n" {
		t.Errorf("log of the init container: %q", text)
	}
	runtimetest.Look(t, p)
	get(t, p, 8081, "/")
	if err := r.Stop(t.Context(), p.ID, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	awaitPrepared(t, r, s) // none is being made any more
	if err := r.Forget(t.Context(), v1alpha1.KeyOf(s)); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, r)
	if after := podInventory(t, r); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}
}

// No pod is prepared for a service that has just been forgotten, even if the keeper was just looking at its pods.
func TestForgottenServicesGetNoPreparedPod(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	s := prepared("forgotten", 1)
	for range 10 {
		if err := r.Prepare(t.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
		awaitPrepared(t, r, s)
		r.keeper.kick()
		if err := r.Forget(t.Context(), v1alpha1.KeyOf(s)); err != nil {
			t.Fatal(err)
		}
		awaitReady(t, r)
		if after := podInventory(t, r); !slices.Equal(before, after) {
			t.Fatalf("before %q\nafter %q", before, after)
		}
	}
}

// The next process adopts the pods that were woken, and removes those that a killed one had only prepared, or was about
// to wake.
func TestOfPreparedPodsTheNextProcessAdoptsThoseThatWereWoken(t *testing.T) {
	cfg := unready(t)
	r := startWithProbe(t, cfg)
	s := prepared("a", 3)
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	awaitPrepared(t, r, s)
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	ids := awaitPrepared(t, r, s)
	r.stopTasks() // and nothing is removed
	if err := os.WriteFile(r.cfg.wokenFile(ids[0]), []byte("4711"), 0o600); err != nil {
		t.Fatal(err)
	}
	next, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}()
	if list, err := next.List(t.Context()); err != nil || len(list) != 1 || list[0] != p {
		t.Errorf("%+v, %v: want only %+v", list, err, p)
	}
	if found, err := next.instanceContainers(t.Context()); err != nil || len(found) != 1 {
		t.Errorf("%v, %v: want only %s", found, err, p.ID)
	}
	runtimetest.Look(t, p)
}

func TestAPreparedPodOutlivesAKilledContainerd(t *testing.T) {
	r := startWithProbe(t, unready(t))
	s := prepared("a", 1)
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	ids := awaitPrepared(t, r, s)
	pid := r.own.PID()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	answers(t, r, pid)
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if p.ID != ids[0] {
		t.Errorf("pod %s was started, prepared was %v", p.ID, ids)
	}
	runtimetest.Look(t, p)
	if err := r.Stop(t.Context(), p.ID, grace); err != nil {
		t.Fatal(err)
	}
	if e := runtimetest.NextExit(t, r, p.ID); e.Code != 0 {
		t.Errorf("%+v", e)
	}
}

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
