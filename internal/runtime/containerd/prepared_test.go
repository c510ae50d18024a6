// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
