// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	"wangell.loutres.me/api/v1alpha1"
)

// forced returns the pods that were deleted with a grace of zero, which does not wait for their node.
func (w *directWorld) forced() (names []string) {
	for _, a := range w.client.Actions() {
		d, ok := a.(clienttesting.DeleteActionImpl)
		if !ok || !a.Matches("delete", "pods") {
			continue
		}
		if g := d.DeleteOptions.GracePeriodSeconds; g != nil && *g == 0 {
			names = append(names, d.Name)
		}
	}
	return names
}

// lastTrouble returns why the service's pods do not start; empty if nothing holds them up.
func (w *directWorld) lastTrouble() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.trouble) == 0 {
		return ""
	}
	return w.trouble[len(w.trouble)-1].Reason
}

// What Kubernetes reports of a pod on a node that does not answer, step by step. None of it says that the pod is gone,
// and nothing is started or deleted by force. Only the end of its object does: kubelet removes that after the end of
// the processes, and the garbage collector of pods once the Node was deleted, or tainted out-of-service.
func TestSinglePodOfALostNodeIsNeverReplaced(t *testing.T) {
	t.Parallel()
	w := newSingleWorld(t)
	w.r.SetNodes([]string{"n1", "n2"})
	out := w.begin(t.Context())
	w.known("single-1")
	pod, err := w.client.CoreV1().Pods("default").Get(t.Context(), "app-single", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.update(pod, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning })
	w.report("single-1", network, created, started)
	if got := get(w.world, out); got.err != nil {
		t.Fatal(got.err)
	}
	notReady := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "NodeNotReady"}
	evicted := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByTaintManager"}
	w.nodeLost.Store(true)
	var ended <-chan startResult
	for i, step := range []struct {
		what string
		do   func()
	}{
		{"its daemon is silent", func() { w.r.SetNodes([]string{"n2"}) }},
		{"its node is not ready", func() {
			w.update(pod, func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{notReady} })
		}},
		{"it is evicted", func() {
			w.update(pod, func(p *corev1.Pod) {
				p.Status.Conditions = append(p.Status.Conditions, evicted)
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(30))
			})
		}},
		{"its grace is over", func() {
			w.update(pod, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)} })
		}},
		{"its phase is unknown", func() {
			w.update(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown })
		}},
		{"its service is stopped", func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := w.r.Stop(ctx, "single-1", time.Second); err == nil {
				t.Error("Stop returned although the pod may run")
			}
		}},
	} {
		step.do()
		ctx, cancel := context.WithCancel(t.Context())
		ended = w.begin(ctx)
		w.until("the wait is reported after "+step.what, func() bool {
			return strings.Contains(w.lastTrouble(), "waits for pod app-single on node n1 to end")
		})
		cancel()
		if got := get(w.world, ended); got.err == nil {
			t.Fatalf("%s: started %+v", step.what, got.pod)
		}
		w.until("the wait is over", func() bool { return w.lastTrouble() == "" })
		if creates := strings.Count(w.done(), "create"); creates != 1 || len(w.forced()) > 0 {
			t.Errorf("%d, %s: did %s; forced %v", i, step.what, w.done(), w.forced())
		}
	}
	ended = w.begin(t.Context())
	if err := w.client.Tracker().Delete(podsGVR, "default", "app-single"); err != nil {
		t.Fatal(err)
	}
	w.known("single-2")
	w.report("single-2", network, created, started)
	if got := get(w.world, ended); got.err != nil || got.pod.ID != "single-2" {
		t.Errorf("started %+v, %v", got.pod, got.err)
	}
}

// A leader that begins after the node was lost has heard of the pod from the API server alone. It reports it all the
// same, before clients come, while they wait and after they were refused, until the node's daemon is there or the
// pod gone.
func TestNextLeaderTellsOfALostNode(t *testing.T) {
	t.Parallel()
	yes := true
	w := newSingleWorld(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app-single", UID: "x",
			Labels: map[string]string{v1alpha1.LabelService: "app"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "Deployment", Name: "app", UID: "d", Controller: &yes},
			}},
		Spec:   corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.9"},
	})
	w.known("x")
	w.r.SetNodes([]string{"n2"})
	lost := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := len(w.trouble)
		return n > 0 && w.trouble[n-1].Lost && strings.Contains(w.trouble[n-1].Reason, "kubectl taint node n1 ")
	}
	w.until("it is reported", lost)
	ctx, cancel := context.WithCancel(t.Context())
	out := w.begin(ctx)
	w.until("a client waits", func() bool {
		return w.holds(func(s *service) bool { return len(s.waiters) > 0 && s.waiters[0].heldUp != "" })
	})
	if !lost() {
		t.Errorf("while a client waits: %q", w.lastTrouble())
	}
	cancel()
	if got := get(w.world, out); got.err == nil || !lost() {
		t.Errorf("%+v; after the client: %q", got, w.lastTrouble())
	}
	w.r.SetNodes([]string{"n1", "n2"})
	w.until("the node is back", func() bool { return w.lastTrouble() == "" })
	if w.done() != "" {
		t.Errorf("did %s", w.done())
	}
}

// A pod on a node that is not ready is deleted without the node where others may run beside it; but not one whose
// service became a single writer since its end was asked for.
func TestPodThatHasBecomeSingleIsNotDeletedByForce(t *testing.T) {
	t.Parallel()
	for _, becomes := range []bool{false, true} {
		w := newDirectWorld(t, nil)
		w.up("app-1")
		w.until("it runs", func() bool { return w.holds(func(s *service) bool { return len(s.pods) == 1 }) })
		if becomes {
			w.put(func(d *appsv1.Deployment) { single("h")(d) })
			w.until("it is single", func() bool { return w.holds(func(s *service) bool { return s.machine.single }) })
		}
		w.r.mu.Lock()
		p := w.r.byUID["app-1"]
		w.r.mu.Unlock()
		if err := w.r.removeLost(t.Context(), p); err != nil { // there is no Node n1
			t.Error(err)
		}
		want := "[app-1]"
		if becomes {
			want = "[]"
		}
		if got := fmt.Sprint(w.forced()); got != want {
			t.Errorf("single %t: deleted by force %s, want %s", becomes, got, want)
		}
	}
}
