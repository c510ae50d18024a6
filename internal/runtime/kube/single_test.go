// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// createSingle creates a pod with a fixed name as the API server does, with a new UID, or refuses a second one.
func (w *directWorld) createSingle(p *corev1.Pod) (bool, apiruntime.Object, error) {
	if _, err := w.client.Tracker().Get(podsGVR, "default", p.Name); err == nil {
		return true, nil, apierrors.NewAlreadyExists(podsGVR.GroupResource(), p.Name)
	}
	if err := w.did("create " + p.Name); err != nil {
		return true, nil, err
	}
	w.mu.Lock()
	w.pods++
	p.UID = types.UID(fmt.Sprint("single-", w.pods))
	w.mu.Unlock()
	return true, p, w.client.Tracker().Create(podsGVR, p, "default")
}

// single makes the Deployment one of a service whose pods must not run at the same time.
func single(hash string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		d.Spec.Template.Labels[v1alpha1.LabelSpecHash] = hash
	}
}

// writer is a service whose pods write to one volume.
func (w *world) writer() *v1alpha1.WangellService {
	s := w.service()
	s.Spec.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}})
	s.Spec.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return s
}

func newSingleWorld(t *testing.T, objects ...apiruntime.Object) *directWorld {
	hash := v1alpha1.Hash(&(&world{}).writer().Spec)
	return newDirectWorld(t, single(hash), objects...)
}

// begin begins a Start.
func (w *directWorld) begin(ctx context.Context) <-chan startResult {
	out := make(chan startResult, 1)
	go func() {
		p, err := w.r.Start(ctx, w.writer(), runtime.StartHooks{})
		out <- startResult{p, err}
	}()
	return out
}

// known waits until a pod is cached.
func (w *directWorld) known(uid string) {
	w.t.Helper()
	w.until(uid, func() bool { w.r.mu.Lock(); defer w.r.mu.Unlock(); return w.r.byUID[uid] != nil })
}

func (w *directWorld) troubles() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(w.trouble)
}

func TestSinglePodIsCreatedOnlyOnceTheOneBeforeItIsGone(t *testing.T) {
	t.Parallel()
	w := newSingleWorld(t)
	out := w.begin(t.Context())
	w.known("single-1")
	w.report("single-1", network, created, started)
	if got := get(w.world, out); got.err != nil || got.pod.ID != "single-1" {
		t.Fatalf("started %+v, %v", got.pod, got.err)
	}
	pod, err := w.client.CoreV1().Pods("default").Get(t.Context(), "app-single", metav1.GetOptions{})
	if err != nil || !metav1.IsControlledBy(pod, w.deploymentNow()) {
		t.Fatalf("%v, the pod is %+v", err, pod)
	}
	// It is deleted, and its node does not answer.
	w.update(pod, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	out = w.begin(t.Context())
	w.until("the wait is reported", func() bool { return strings.Contains(w.troubles(), "waits for pod app-single") })
	if w.done() != "create app-single" {
		t.Errorf("did %s", w.done())
	}
	if err := w.client.Tracker().Delete(podsGVR, "default", "app-single"); err != nil {
		t.Fatal(err)
	}
	w.known("single-2")
	w.report("single-2", network, created, started)
	if got := get(w.world, out); got.err != nil || got.pod.ID != "single-2" {
		t.Fatalf("started %+v, %v", got.pod, got.err)
	}
	w.settled("create app-single, create app-single")
}

// What the caches do not know yet, the API server does.
func TestSinglePodIsNotCreatedBesideOneThatIsNotCached(t *testing.T) {
	t.Parallel()
	w := newSingleWorld(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app-single", UID: "x"}})
	ctx, cancel := context.WithCancel(t.Context())
	out := w.begin(ctx)
	w.until("the attempt", func() bool {
		for _, a := range w.client.Actions() {
			if a.Matches("create", "pods") {
				return true
			}
		}
		return false
	})
	cancel()
	if got := get(w.world, out); !errors.Is(got.err, context.Canceled) || w.done() != "" {
		t.Errorf("%v, did %s", got.err, w.done())
	}
}

func TestSinglePodOfAFailedStartIsDeleted(t *testing.T) {
	t.Parallel()
	w := newSingleWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := w.begin(ctx)
	w.known("single-1")
	cancel()
	if got := get(w.world, out); !errors.Is(got.err, context.Canceled) {
		t.Error(got.err)
	}
	w.settled("create app-single, delete app-single")
}

// A service that has a pod of a ReplicaSet keeps the pod and loses the ReplicaSet, which would start another one at
// once if the pod were deleted. From then on the Deployment wants nothing.
func TestReplicaSetOfASinglePodIsTakenAway(t *testing.T) {
	t.Parallel()
	yes, one := true, int32(1)
	owner := func(kind, name string, uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: uid, Controller: &yes}}
	}
	labels := map[string]string{v1alpha1.LabelService: "app"}
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app-x", UID: "s", Labels: labels,
			OwnerReferences: owner("Deployment", "app", "d")},
		Spec: appsv1.ReplicaSetSpec{Replicas: &one}, Status: appsv1.ReplicaSetStatus{Replicas: 1},
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app-x-1", UID: "p", Labels: labels,
		OwnerReferences: owner("ReplicaSet", "app-x", "s")}}
	w := newDirectWorld(t, func(d *appsv1.Deployment) {
		single("h")(d)
		d.Spec.Paused, d.Spec.Replicas = false, &one
	}, set, pod)
	w.settled("pause, orphan set, scale 0")
	stopped := make(chan error, 1)
	go func() { stopped <- w.r.Stop(t.Context(), "p", time.Second) }()
	if err := get(w.world, stopped); err != nil {
		t.Error(err)
	}
	w.settled("pause, orphan set, scale 0, delete app-x-1")
	// It cannot be scaled by hand, either.
	w.put(func(d *appsv1.Deployment) { d.Spec.Replicas = &one })
	w.settled("pause, orphan set, scale 0, delete app-x-1, scale 0")
}
