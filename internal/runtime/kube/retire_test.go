// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/runtime"
)

// After Retire nothing is written, by whatever asks for it. What becomes of pods is still delivered, and a Start whose
// pod exists ends well.
func TestRetiredRuntimeWritesNothing(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	o := w.apiPod(nil)
	starting := w.start(t.Context(), runtime.StartHooks{})
	w.r.Retire()
	written := len(writesOf(w))
	if _, err := w.r.Start(t.Context(), w.service(), runtime.StartHooks{}); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("Start: %v", err)
	}
	if err := w.r.Stop(t.Context(), "app-1", time.Second); !errors.Is(err, errRetired) {
		t.Errorf("Stop: %v", err)
	}
	w.report("u2", network, created, started)
	if got := get(w, starting); got.err != nil || got.pod.ID != "u2" {
		t.Errorf("the Start before it: %+v, %v", got.pod, got.err)
	}
	w.report("u3", network, created, started) // by the next leader
	if p := get(w, w.r.Appeared()); p.ID != "u3" {
		t.Errorf("%s appeared", p.ID)
	}
	w.update(o, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	w.report("app-1", exited, gone)
	if e := get(w, w.r.Exits()); e.PodID != "app-1" {
		t.Errorf("exit %+v", e)
	}
	if after := writesOf(w); len(after) != written+3 { // the test's own: two pods, and an update
		t.Errorf("wrote %v", after[written:])
	}
}

// A Start that is given up after Retire leaves its pod to the next leader.
func TestRetiredRuntimeLeavesPodsOfAbandonedStarts(t *testing.T) {
	w := newWorld(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	starting := w.start(ctx, runtime.StartHooks{})
	w.report("u1", network, created)
	w.r.Retire()
	written := len(writesOf(w))
	cancel()
	if got := get(w, starting); !errors.Is(got.err, context.Canceled) {
		t.Errorf("%+v", got)
	}
	if err := w.r.Close(); err != nil {
		t.Error(err)
	}
	if after := writesOf(w); len(after) != written {
		t.Errorf("wrote %v", after[written:])
	}
}

// writesOf returns the requests so far that change something.
func writesOf(w *world) (out []string) {
	for _, a := range w.client.Actions() {
		switch verb := a.GetVerb(); verb {
		case "get", "list", "watch":
		default:
			out = append(out, verb+" "+a.GetResource().Resource)
		}
	}
	return out
}
