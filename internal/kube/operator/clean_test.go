// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/reservation"
)

// revision creates a service with the finalizer.
func (w *world) revision(name string) {
	w.t.Helper()
	s := w.apply(name)
	controllerutil.AddFinalizer(s, v1alpha1.FinalizerRevision)
	controllerutil.AddFinalizer(s, "example.com/other")
	if err := w.client.Update(w.t.Context(), s); err != nil {
		w.t.Fatal(err)
	}
}

// smallPod creates a pod with one container, which requests 1m and 8Mi.
func (w *world) smallPod(name string, labels, annotations map[string]string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "registry.example/app:1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("8Mi"),
			}}}}},
	}
	w.create(p)
	return p
}

// requested returns what the pod requests, as "CPU MEMORY".
func (w *world) requested(name string) string {
	w.t.Helper()
	var p corev1.Pod
	w.get(name, &p)
	r := p.Spec.Containers[0].Resources.Requests
	return r.Cpu().String() + " " + r.Memory().String()
}

func (w *world) clean(timeout time.Duration, controllers string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), timeout)
	defer cancel()
	return Clean(ctx, CleanConfig{
		Rest: w.config, Controllers: Name{w.namespace, controllers}, Namespace: w.namespace, Log: w.cfg.Log,
	})
}

func TestCleanUndoesWhatControllersDidOnceTheyHaveEnded(t *testing.T) {
	w := newWorld(t, nil)
	w.revision("v1")
	note := map[string]string{reservation.Annotation: `{"app":{"cpu":"1","memory":"1Gi"}}`}
	w.smallPod("frozen", map[string]string{v1alpha1.LabelService: "frozen"}, note)
	w.smallPod("half", map[string]string{v1alpha1.LabelService: "half"},
		map[string]string{reservation.Annotation: `{"app":{"cpu":"1"}}`})
	w.smallPod("other", nil, note) // of nobody
	labels := map[string]string{"app": "controller"}
	w.controllers(2, labels)
	controller := w.smallPod("controller-1", labels, nil)

	err := w.clean(time.Second, "controllers")
	if err == nil || !strings.Contains(err.Error(), "pod controller-1 on node") {
		t.Errorf("while a controller runs: %v", err)
	}
	if n := w.replicas("controllers"); n != 0 {
		t.Errorf("%d controllers", n)
	}
	if got := w.requested("frozen"); !w.isKept("v1") || got != "1m 8Mi" {
		t.Errorf("the controller that runs is not waited for: the pod requests %s", got)
	}

	if err := w.client.Delete(t.Context(), controller, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		if err := w.clean(patience, "controllers"); err != nil {
			t.Fatal(err)
		}
		if got := w.service("v1").Finalizers; len(got) != 1 || got[0] != "example.com/other" {
			t.Errorf("finalizers %v", got)
		}
		for name, want := range map[string]string{"frozen": "1 1Gi", "half": "1 8Mi", "other": "1m 8Mi"} {
			var p corev1.Pod
			w.get(name, &p)
			if got := w.requested(name); got != want || reservation.Noted(&p) != (name == "other") {
				t.Errorf("pod %s requests %s, want %s; annotations %v", name, got, want, p.Annotations)
			}
		}
	}
}

func TestCleanWorksWithoutControllers(t *testing.T) {
	w := newWorld(t, nil)
	w.revision("v1")
	if err := w.clean(patience, "gone"); err != nil {
		t.Fatal(err)
	}
	if w.isKept("v1") {
		t.Error("v1 has the finalizer")
	}
}

// What cannot be undone for one pod keeps nothing else from being undone.
func TestCleanNamesPodsWhoseRequestsItCannotRestore(t *testing.T) {
	w := newWorld(t, nil)
	w.revision("v1")
	w.smallPod("broken", map[string]string{v1alpha1.LabelService: "broken"},
		map[string]string{reservation.Annotation: "?"})
	w.smallPod("frozen", map[string]string{v1alpha1.LabelService: "frozen"},
		map[string]string{reservation.Annotation: `{"app":{"cpu":"1"}}`})
	err := w.clean(patience, "gone")
	if err == nil || !strings.Contains(err.Error(), "pod "+w.namespace+"/broken") ||
		strings.Contains(err.Error(), "frozen") {
		t.Errorf("%v", err)
	}
	if got := w.requested("frozen"); w.isKept("v1") || got != "1 8Mi" {
		t.Errorf("the pod requests %s, or v1 has the finalizer", got)
	}
}

// What people look at after an uninstallation says that there was one, and an installation takes it back.
func TestServicesSayThatWangellIsUninstalled(t *testing.T) {
	w := newWorld(t, nil)
	w.apply("shop")
	stop := w.run()
	w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
	stop()
	if err := w.clean(patience, "none"); err != nil {
		t.Fatal(err)
	}
	m := w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionFalse, "Uninstalled")
	w.condition("shop", v1alpha1.ConditionAwake, metav1.ConditionFalse, "Uninstalled")
	if w.service("shop").Status.Message != m || !strings.Contains(m, "nothing serves this address") {
		t.Errorf("message %q", m)
	}
	w.run()
	w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
}
