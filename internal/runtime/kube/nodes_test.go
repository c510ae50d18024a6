// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/runtime"
)

// A pod that is bound to a node without a daemon is replaced, once that is known; the Start waits for the next one.
func TestNodeWithoutDaemon(t *testing.T) {
	w := newWorld(t, 0)
	out := w.start(t.Context(), runtime.StartHooks{})
	dead := w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = "dead" })
	w.r.SetNodes(nil) // no daemon is heard at all: perhaps it is the controller that nobody hears
	w.r.mu.Lock()
	for _, p := range w.r.byUID {
		if w.r.lost(p) {
			t.Error("lost, although no node has a daemon")
		}
	}
	w.r.mu.Unlock()
	w.r.SetNodes([]string{"n1"})
	w.until("the pod on the dead node is deleted", func() bool {
		for _, a := range w.client.Actions() {
			if d, ok := a.(interface{ GetName() string }); ok && a.GetVerb() == "delete" && a.GetResource().Resource == "pods" && d.GetName() == dead.Name {
				return true
			}
		}
		return false
	})
	w.seen(dead.Name, network, created, started) // its daemon is back, too late
	next := w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
	w.seen(next.Name, network, created, started)
	if got := get(w, out); got.err != nil || got.pod.ID != next.Name {
		t.Errorf("%+v, %v", got.pod, got.err)
	}
	if w.writes() != "[1]" {
		t.Errorf("wrote %s", w.writes())
	}
}
