// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	appsv1 "k8s.io/api/apps/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// known tells what is known of app.
func (w *world) known(of func(*service) bool) bool {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return of(w.r.services["default/app"])
}

// The Deployment's status changes between the decision to stop a pod and the write: its number of then is none of
// anybody's wish. And it is not written before the pod is marked, lest another one goes.
func TestStopWhileTheDeploymentChanges(t *testing.T) {
	w := newWorld(t, 0)
	for _, id := range []string{"app-1", "app-2", "app-3"} {
		w.up(id)
		w.apiPod(nil)
	}
	w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		if !w.known(func(s *service) bool { return s.want == 2 && s.number() == 3 }) {
			t.Error("it is not decided")
		}
		w.r.deploymentSeen(w.changed(3))
		if got := w.writes(); got != "[1 2 3]" {
			t.Errorf("wrote %s before the pod is marked", got)
		}
		return false, nil, nil
	})
	if err := w.r.Stop(t.Context(), "app-2", 5*time.Second); err != nil {
		t.Error(err)
	}
	if got := w.writes(); got != "[1 2 3 2]" {
		t.Errorf("wrote %s", got)
	}
}

// changed is a new version of the Deployment.
func (w *world) changed(replicas int32) *appsv1.Deployment {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version++
	return w.deployment(replicas)
}

// Starts are given up whose pods are there, without a network: one less is wanted for each.
func TestStartsGivenUp(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	w.apiPod(nil)
	ctx, cancel := context.WithCancel(t.Context())
	a := w.start(ctx, runtime.StartHooks{})
	b := w.start(ctx, runtime.StartHooks{})
	w.apiPod(nil)
	w.apiPod(nil)
	cancel()
	if get(w, a).err == nil || get(w, b).err == nil {
		t.Error("they were given a pod")
	}
	w.until("one is wanted", func() bool { return w.known(func(s *service) bool { return s.want == 1 && s.written == 1 }) })
}

// While a Start waits in a rollout, a change of the Deployment's status makes it want no more.
func TestStartInARollout(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	w.seen("app-2", network, created, started)
	get(w, w.r.Appeared())
	out := w.start(t.Context(), runtime.StartHooks{})
	w.r.deploymentSeen(w.changed(2))
	if !w.known(func(s *service) bool { return s.want == 2 }) {
		t.Error("it wants more")
	}
	w.seen("app-3", network, created, started)
	if got := get(w, out); got.err != nil || w.writes() != "[1 2]" {
		t.Errorf("%v, wrote %s", got.err, w.writes())
	}
}

// Somebody scales the Deployment up: its pods appear, and when they are stopped, it wants as many as before.
func TestScaledByOthers(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	w.r.deploymentSeen(w.changed(2))
	w.seen("app-2", network, created, started)
	get(w, w.r.Appeared())
	w.r.mu.Lock()
	w.r.byUID["app-2"].grace = time.Second
	w.r.mu.Unlock()
	stopped := make(chan error, 1)
	go func() { stopped <- w.r.Stop(context.Background(), "app-2", time.Second) }()
	w.until("one is wanted", func() bool { return w.writes() == "[1 1]" })
	w.seen("app-2", exited, gone)
	if err := get(w, stopped); err != nil {
		t.Error(err)
	}
}

func TestRolling(t *testing.T) {
	w := newWorld(t, 0)
	of := func(template string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = template }
	}
	rolling := func() bool { return w.r.Rolling("default/app") }
	old := w.apiPod(of("a"))
	w.apiPod(of("a"))
	if rolling() || w.r.Rolling("default/other") {
		t.Error("it rolls, and all are of one template")
	}
	w.apiPod(of("b"))
	if !rolling() {
		t.Error("it does not roll with two templates")
	}
	w.update(old, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	w.until("one of the old ones leaves", func() bool { w.r.mu.Lock(); defer w.r.mu.Unlock(); return w.r.byUID["app-1"].leaving })
	if !rolling() {
		t.Error("it does not roll with one left")
	}
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "app-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("it is over", func() bool { return !rolling() })
}

func TestPortOfThePod(t *testing.T) {
	w := newWorld(t, 0)
	w.apiPod(func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationTargetPort] = "4711" })
	w.seen("app-1", network, created, started)
	if p := get(w, w.r.Appeared()); p.Port != 4711 {
		t.Errorf("its port is %d", p.Port)
	}
}
