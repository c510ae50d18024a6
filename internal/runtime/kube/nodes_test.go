// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/runtime"
)

// What a daemon says of a pod that runs on another node does not count.
func TestReportOfAPodOfAnotherNodeIsIgnored(t *testing.T) {
	w := newWorld(t, 0)
	pods := map[string]bool{} // whether the daemon that reports them, that of n1, is their own
	for _, node := range []string{"n1", "n2"} {
		pods[w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = node }).Name] = node == "n1"
	}
	for name, own := range pods {
		seen := func() *pod {
			w.r.mu.Lock()
			defer w.r.mu.Unlock()
			return w.r.byUID[name]
		}
		w.until("the pod "+name, func() bool { return seen() != nil })
		for _, e := range []runtime.PodEvent{network, created, started} {
			w.reportFrom("n1", name, e)
		}
		w.r.mu.Lock()
		if p := w.r.byUID[name]; p.rt.Addr.IsValid() != own {
			t.Errorf("pod of node %s, reported by n1: %+v", p.node, p.rt)
		}
		w.r.mu.Unlock()
	}
}

// A pod that is bound to a node without a daemon is deleted once that is known, and the Start gets its replacement.
func TestPodOnANodeWithoutADaemonIsReplaced(t *testing.T) {
	w := newWorld(t, 0)
	out := w.start(t.Context(), runtime.StartHooks{})
	dead := w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = "dead" })
	w.r.SetNodes(nil) // no daemon is connected: the fault may be the controller's
	w.r.mu.Lock()
	for _, p := range w.r.byUID {
		if w.r.misplaced(p) {
			t.Error("the pod counts as misplaced, although no node has a daemon")
		}
	}
	w.r.mu.Unlock()
	w.r.SetNodes([]string{"n1"})
	w.until("the deletion of the pod on the dead node", func() bool {
		for _, a := range w.client.Actions() {
			if d, ok := a.(interface{ GetName() string }); ok && a.GetVerb() == "delete" && a.GetResource().Resource == "pods" &&
				d.GetName() == dead.Name {
				return true
			}
		}
		return false
	})
	w.report(dead.Name, network, created, started) // its daemon is back too late
	next := w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
	w.report(next.Name, network, created, started)
	if got := get(w, out); got.err != nil || got.pod.ID != next.Name {
		t.Errorf("%+v, %v", got.pod, got.err)
	}
	if w.writes() != "[1]" {
		t.Errorf("wrote %s", w.writes())
	}
}

// At an upgrade the daemons are replaced together with the controller: an existing pod whose daemon is not back yet is
// neither deleted at once, nor taken for one that is gone.
func TestInheritedPodWaitsForItsDaemon(t *testing.T) {
	w := newWorld(t, 1)
	old := w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = "n2" })
	w.until("the pod", func() bool {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		return w.r.byUID[old.Name] != nil
	})
	if got := w.r.Inherited("default/app"); len(got) != 0 {
		t.Errorf("inherited %q, although this process saw it begin", got)
	}
	w.r.Close()
	w.open()
	now := time.Now()
	if got := w.r.inherited("default/app", now); !slices.Equal(got, []string{old.Name}) {
		t.Errorf("inherited %q", got)
	}
	if got := w.r.inherited("default/app", now.Add(reportPatience)); len(got) != 0 {
		t.Errorf("after %s, %q still counts", reportPatience, got)
	}
	w.r.mu.Lock()
	p := w.r.byUID[old.Name]
	if got := w.r.patience(p, w.r.opened); got != inheritedPatience {
		t.Errorf("its daemon is waited for %s", got)
	}
	if got := w.r.patience(p, now.Add(time.Hour)); got != nodePatience {
		t.Errorf("later, its daemon is waited for %s", got)
	}
	p.set(podLeaving)
	w.r.mu.Unlock()
	if got := w.r.inherited("default/app", now); len(got) != 0 {
		t.Errorf("%q counts although it leaves", got)
	}
}
