// SPDX-License-Identifier: Apache-2.0

package runtimetest

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/runtime"
)

// Harness creates the runtime under test.
type Harness struct {
	// Open opens a runtime that has the image Probe under the name ProbeTag. Called again after Close, it opens the same
	// instance again. Each test gets a new Harness, and its creator cleans up.
	Open func(t *testing.T) runtime.Runtime
	// Remote is set if pods run on other machines: their namespaces and devices are unknown here, images are pulled
	// there, and the log of a pod is deleted with it.
	Remote bool
	// Phases are the phases that the runtime reports, in order. Default: all.
	Phases []runtime.Phase
}

func (h Harness) phases() []runtime.Phase {
	if h.Phases != nil {
		return h.Phases
	}
	return []runtime.Phase{runtime.PhaseImage, runtime.PhaseSandbox, runtime.PhaseCreated, runtime.PhaseStarted}
}

func mustStart(t *testing.T, r runtime.Runtime, s *v1alpha1.WangellService) runtime.Pod {
	t.Helper()
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustStop(t *testing.T, r runtime.Runtime, p runtime.Pod) {
	t.Helper()
	if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
		t.Fatal(err)
	}
}

// listed returns a pod as List has it.
func listed(t *testing.T, r runtime.Runtime, id string) (runtime.Pod, bool) {
	t.Helper()
	pods, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if p.ID == id {
			return p, true
		}
	}
	return runtime.Pod{}, false
}

func none(t *testing.T, r runtime.Runtime) {
	t.Helper()
	pods, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(pods) != 0 {
		t.Errorf("pods are left: %+v", pods)
	}
}

func startStop(t *testing.T, h Harness) {
	r := h.Open(t)
	s := Service("start-stop")
	p := mustStart(t, r, s)
	if p.Service != v1alpha1.KeyOf(s) || p.SpecHash != v1alpha1.Hash(&s.Spec) || p.ID == "" || !p.Addr.IsValid() ||
		p.Started == 0 ||
		!h.Remote && (p.Netns == "" || p.HostDevice == 0) {
		t.Errorf("fields are missing in pod %+v", p)
	}
	if got, ok := listed(t, r, p.ID); !ok || got != p {
		t.Errorf("List has %+v, Start returned %+v", got, p)
	}
	if code, _ := Ask(t, p, "/", nil); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
	mustStop(t, r, p)
	none(t, r)
	if e := NextExit(t, r, p.ID); e.Code != 0 || e.Service != p.Service || time.Since(e.At) > time.Minute {
		t.Errorf("exit %+v", e)
	}
	again := mustStart(t, r, s)
	if again.ID == p.ID {
		t.Error("a second pod has the ID of the first")
	}
	Look(t, again)
	mustStop(t, r, again)
}

func phases(t *testing.T, h Harness) {
	r := h.Open(t)
	begin := monotime.Now()
	var order []runtime.Phase
	last := begin
	var network runtime.Pod
	p, err := r.Start(t.Context(), Service("phases"), runtime.StartHooks{
		Phase: func(ph runtime.Phase, at monotime.Time) {
			order = append(order, ph)
			if at < last {
				t.Errorf("phase %s ended before the one before it", ph)
			}
			last = at
			if ph == runtime.PhaseStarted && network.ID == "" {
				t.Error("Network was not called before the process ran")
			}
		},
		Network: func(p runtime.Pod) { network = p },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := h.phases()
	if len(order) != len(want) {
		t.Fatalf("phases %v, want %v", order, want)
	}
	for i := range want {
		if order[i] != want[i] {
			t.Fatalf("phases %v, want %v", order, want)
		}
	}
	if network.ID != p.ID || network.Addr != p.Addr || network.Netns != p.Netns || network.HostDevice != p.HostDevice ||
		network.Started != 0 {
		t.Errorf("Network was called with %+v, the pod is %+v", network, p)
	}
	mustStop(t, r, p)
}

func stopIsIdempotent(t *testing.T, h Harness) {
	r := h.Open(t)
	if err := r.Stop(t.Context(), "never-existed", time.Second); err != nil {
		t.Errorf("stop of a pod that never was: %v", err)
	}
	p := mustStart(t, r, Service("twice"))
	Look(t, p) // once it answers, it handles SIGTERM
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	mustStop(t, r, p)
	none(t, r)
}

func stopKillsAfterGrace(t *testing.T, h Harness) {
	r := h.Open(t)
	p := mustStart(t, r, Service("stubborn", "IGNORE_TERM", "1"))
	Look(t, p)
	begin := time.Now()
	const grace = 300 * time.Millisecond
	if err := r.Stop(t.Context(), p.ID, grace); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < grace {
		t.Errorf("killed after %v, before its grace of %v", took, grace)
	}
	if e := NextExit(t, r, p.ID); e.Code != 128+9 {
		t.Errorf("exit code %d, want that of SIGKILL", e.Code)
	}
	none(t, r)
}

func manyAtOnce(t *testing.T, h Harness) {
	r := h.Open(t)
	const n = 8
	pods := make([]runtime.Pod, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			p, err := r.Start(t.Context(), Service("many-"+string(rune('a'+i))), runtime.StartHooks{})
			if err != nil {
				t.Error(err)
			}
			pods[i] = p
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	seen := map[string]bool{}
	for _, p := range pods {
		for _, x := range []string{p.ID, p.Addr.String(), p.Netns} {
			if x == "" && h.Remote {
				continue
			}
			if seen[x] {
				t.Errorf("two pods have %s", x)
			}
			seen[x] = true
		}
		// The host name may be a prefix of the name, or have a suffix.
		got := "default/" + Look(t, p).Hostname
		if !strings.HasPrefix(string(p.Service), got) && !strings.HasPrefix(got, string(p.Service)+"-") {
			t.Errorf("pod of %s answers as %s", p.Service, got)
		}
	}
	for _, p := range pods {
		all.Go(func() {
			if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	none(t, r)
}

func severalPods(t *testing.T, h Harness) {
	r := h.Open(t)
	s := Service("several")
	a, b := mustStart(t, r, s), mustStart(t, r, s)
	if a.ID == b.ID || a.Addr == b.Addr {
		t.Errorf("two pods share an ID or an address: %+v %+v", a, b)
	}
	Look(t, a)
	mustStop(t, r, a)
	Look(t, b)
	mustStop(t, r, b)
}

func frozenPod(t *testing.T, h Harness) {
	if h.Remote {
		return // the daemon of its node freezes it there
	}
	r := h.Open(t)
	p := mustStart(t, r, Service("frozen"))
	Look(t, p) // it handles its signal by then
	f := freezer.New("")
	if err := f.Freeze(t.Context(), p.Cgroup); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = h.Open(t)
	if _, ok := listed(t, r, p.ID); !ok {
		t.Error("a frozen pod was not adopted")
	}
	if frozen, err := f.Frozen(p.Cgroup); err != nil || !frozen {
		t.Errorf("frozen before the stop: %t, %v", frozen, err)
	}
	began := time.Now()
	if err := r.Stop(t.Context(), p.ID, time.Minute); err != nil {
		t.Fatal(err)
	}
	if e := NextExit(t, r, p.ID); e.Code != 0 || time.Since(began) > 30*time.Second {
		t.Errorf("after %v: exit %+v", time.Since(began), e)
	}
}
