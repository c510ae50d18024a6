// SPDX-License-Identifier: Apache-2.0

package runtimetest

import (
	"bytes"
	"context"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

func logs(t *testing.T, h Harness) {
	r := h.Open(t)
	s := Service("logs")
	k := v1alpha1.KeyOf(s)
	var empty bytes.Buffer
	if err := r.Logs(t.Context(), k, &empty, runtime.LogOptions{Tail: -1}); err != nil || empty.Len() > 0 {
		t.Errorf("log of a service that never ran: %q, %v", empty.String(), err)
	}
	p := mustStart(t, r, s)
	Ask(t, p, "/print", url.Values{"t": {"one"}, "n": {"1"}})
	follow := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	w := &lineWaiter{want: "three\n", found: func() { cancel() }}
	go func() {
		if err := r.Logs(ctx, k, w, runtime.LogOptions{Tail: -1, Follow: true}); err != nil {
			t.Error(err)
		}
		follow <- w.String()
	}()
	await(t, "line one in the log", func() bool {
		var b bytes.Buffer
		return r.Logs(t.Context(), k, &b, runtime.LogOptions{Tail: -1}) == nil && strings.HasSuffix(b.String(), "\none\n")
	})
	Ask(t, p, "/print", url.Values{"t": {"two"}, "n": {"2"}})
	Ask(t, p, "/print", url.Values{"t": {"three"}, "n": {"1"}})
	select {
	case got := <-follow:
		if !strings.HasSuffix(got, "three\n") {
			t.Errorf("follower saw %q", got)
		}
	case <-time.After(60 * time.Second):
		t.Error("follower did not see the last line")
	}
	mustStop(t, r, p)
	if h.Remote {
		return
	}
	for tail, want := range map[int]string{
		-1: "probe: listening on port 8080\none\ntwo\ntwo\nthree\nprobe: stopped\n", 0: "", 1: "probe: stopped\n",
		3: "two\nthree\nprobe: stopped\n", 100: "probe: listening on port 8080\none\ntwo\ntwo\nthree\nprobe: stopped\n",
	} {
		var b bytes.Buffer
		if err := r.Logs(t.Context(), k, &b, runtime.LogOptions{Tail: tail}); err != nil || b.String() != want {
			t.Errorf("last %d lines: %q, %v; want %q", tail, b.String(), err, want)
		}
	}
}

// lineWaiter collects what is written and calls found once it ends with want.
type lineWaiter struct {
	mu    sync.Mutex
	b     bytes.Buffer
	want  string
	found func()
}

func (w *lineWaiter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(p)
	if strings.HasSuffix(w.b.String(), w.want) {
		w.found()
	}
	return len(p), nil
}

func (w *lineWaiter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// await waits until a condition holds; after a minute the test fails.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatal("not seen: " + what)
}

func reopen(t *testing.T, h Harness) {
	r := h.Open(t)
	p := mustStart(t, r, Service("reopen"))
	pid := Look(t, p).PID
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	Look(t, p)
	r = h.Open(t)
	got, ok := listed(t, r, p.ID)
	if !ok {
		t.Fatal("the pod is not adopted")
	}
	if d := got.Started.Sub(p.Started); d < -time.Second || d > time.Second {
		t.Errorf("its start time is off by %v", d)
	}
	got.Started = p.Started
	if got != p {
		t.Errorf("adopted as %+v, was %+v", got, p)
	}
	if again := Look(t, p).PID; again != pid {
		t.Errorf("its process changed from %d to %d", pid, again)
	}
	mustStop(t, r, p)
	if e := NextExit(t, r, p.ID); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
	none(t, r)
}

func forgetAndPrepare(t *testing.T, h Harness) {
	r := h.Open(t)
	s := Service("prepared")
	for range 2 {
		if err := r.Prepare(t.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
	}
	none(t, r)
	p := mustStart(t, r, s)
	Look(t, p)
	mustStop(t, r, p)
	for range 2 {
		if err := r.Forget(t.Context(), v1alpha1.KeyOf(s)); err != nil {
			t.Fatal(err)
		}
	}
	none(t, r)
	p = mustStart(t, r, s)
	mustStop(t, r, p)
}

func changedSpec(t *testing.T, h Harness) {
	r := h.Open(t)
	s := Service("changed", "VALUE", "old")
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	s = Service("changed", "VALUE", "new")
	p := mustStart(t, r, s)
	if p.SpecHash != v1alpha1.Hash(&s.Spec) {
		t.Errorf("hash %s is not that of the new spec", p.SpecHash)
	}
	found := false
	for _, e := range Look(t, p).Env {
		found = found || e == "VALUE=new"
	}
	if !found {
		t.Error("the pod was started from the old spec")
	}
	mustStop(t, r, p)
}
