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

// holds reports whether something holds of the service app.
func (w *world) holds(of func(*service) bool) bool {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	s := w.r.services["default/app"]
	return s != nil && of(s)
}

// A change of the Deployment's status between the decision to stop a pod and the write does not change the wanted
// number. The number is not written before the pod is marked, or another one might go.
func TestStopIgnoresAnOldNumberOfReplicas(t *testing.T) {
	w := newWorld(t, 0)
	for _, id := range []string{"app-1", "app-2", "app-3"} {
		w.up(id)
		w.apiPod(nil)
	}
	w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		if !w.holds(func(s *service) bool { return s.machine.want == 2 && s.machine.number() == 3 }) {
			t.Error("the victim's replica is not kept in the write")
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

// changed returns a new version of the Deployment.
func (w *world) changed(replicas int32) *appsv1.Deployment {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.version++
	return w.deployment(replicas)
}

// A Start that is cancelled while its pod has no network takes its replica back.
func TestCancelledStartsTakeTheirReplicasBack(t *testing.T) {
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
		t.Error("a cancelled Start returned a pod")
	}
	w.until("one pod is wanted", func() bool {
		return w.holds(func(s *service) bool { return s.machine.want == 1 && s.machine.written == 1 })
	})
}

// A change of the Deployment's status during a rollout, while a Start waits, does not raise the wanted number.
func TestStatusChangeInARolloutWantsNoMorePods(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	w.report("app-2", network, created, started)
	get(w, w.r.Appeared())
	out := w.start(t.Context(), runtime.StartHooks{})
	w.r.deploymentSeen(w.changed(2))
	if !w.holds(func(s *service) bool { return s.machine.want == 2 }) {
		t.Error("the wanted number has changed")
	}
	w.report("app-3", network, created, started)
	if got := get(w, out); got.err != nil || w.writes() != "[1 2]" {
		t.Errorf("%v, wrote %s", got.err, w.writes())
	}
}

// The pods of a Deployment that others scale up appear. Once they are stopped, as many are wanted as before.
func TestPodsOfADeploymentScaledByOthersAppear(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	w.r.deploymentSeen(w.changed(2))
	w.report("app-2", network, created, started)
	get(w, w.r.Appeared())
	w.r.mu.Lock()
	w.r.byUID["app-2"].grace = time.Second
	w.r.mu.Unlock()
	stopped := make(chan error, 1)
	go func() { stopped <- w.r.Stop(context.Background(), "app-2", time.Second) }()
	w.until("one pod is wanted", func() bool { return w.writes() == "[1 1]" })
	w.report("app-2", exited, gone)
	if err := get(w, stopped); err != nil {
		t.Error(err)
	}
}

func TestRollingWhilePodsAreOfSeveralTemplates(t *testing.T) {
	w := newWorld(t, 0)
	of := func(template string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = template }
	}
	rolling := func() bool { return w.r.Rolling("default/app") }
	old := w.apiPod(of("a"))
	w.apiPod(of("a"))
	if rolling() || w.r.Rolling("default/other") {
		t.Error("rolling, although all pods are of one template")
	}
	w.apiPod(of("b"))
	if !rolling() {
		t.Error("not rolling, although pods are of two templates")
	}
	w.update(old, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	w.until("an old pod leaves", func() bool {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		return w.r.byUID["app-1"].is(podLeaving)
	})
	if !rolling() {
		t.Error("not rolling, although one old pod is left")
	}
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "app-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("the end of the rollout", func() bool { return !rolling() })
}

func TestPortComesFromThePodsAnnotation(t *testing.T) {
	w := newWorld(t, 0)
	w.apiPod(func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationTargetPort] = "4711,4712" })
	w.report("app-1", network, created, started)
	if p := get(w, w.r.Appeared()); p.Ports != [v1alpha1.MaxPorts]uint16{4711, 4712} {
		t.Errorf("ports %d, want 4711 and 4712", p.Ports)
	}
}
