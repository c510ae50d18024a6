// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// kubelet says why it has evicted a pod only when nothing runs of it any more and the controller has deleted it.
func TestEvictedPodHasItsReason(t *testing.T) {
	const keep = "example.com/keep" // the pod's object, which the player would delete before it says why
	w := newWorld(t, nil)
	w.run()
	w.apply("web")
	a := w.vip("web")
	w.d.syn(a)
	w.until("a pod serves", func() bool { return w.d.serving(a) == 1 })
	w.changeOnlyPod(func(o *corev1.Pod) { controllerutil.AddFinalizer(o, keep) })
	t.Cleanup(func() { w.changeOnlyPod(func(o *corev1.Pod) { controllerutil.RemoveFinalizer(o, keep) }) })
	w.d.endAll()
	w.until("it counts as crashed", func() bool {
		return w.service("web").Status.Message == "crashed: process exited with code 0"
	})
	o := w.onlyPod()
	o.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted",
		Message: "The node was low on resource: memory. ", PodIP: o.Status.PodIP, HostIP: o.Status.HostIP}
	if err := w.client.Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := "ended: pod " + o.Name + " was evicted by its node (Evicted: The node was low on resource: memory)"
	w.until("its reason is told", func() bool { return w.service("web").Status.Message == want })
}

// onlyPod returns the pod of the namespace, which has no other.
func (w *world) onlyPod() *corev1.Pod {
	w.t.Helper()
	var pods corev1.PodList
	err := w.client.List(context.Background(), &pods, client.InNamespace(w.namespace))
	if err != nil || len(pods.Items) != 1 {
		w.t.Fatalf("%d pods: %v", len(pods.Items), err)
	}
	return &pods.Items[0]
}

// changeOnlyPod changes it.
func (w *world) changeOnlyPod(change func(*corev1.Pod)) {
	w.t.Helper()
	w.until("the pod is changed", func() bool {
		o := w.onlyPod()
		change(o)
		err := w.client.Update(context.Background(), o)
		if err != nil && !apierrors.IsConflict(err) {
			w.t.Fatal(err)
		}
		return err == nil
	})
}
