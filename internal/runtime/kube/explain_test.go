// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/runtime"
)

// says has kubelet record an Event of a pod.
func (w *world) says(o *corev1.Pod, kind, reason, message string) {
	w.t.Helper()
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", GenerateName: o.Name, Name: o.Name + reason},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: o.Name, UID: o.UID},
		Type:           kind, Reason: reason, Message: message, LastTimestamp: metav1.Now(),
	}
	if _, err := w.client.CoreV1().Events("default").Create(context.Background(), e, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// untilTrouble waits until this is the last trouble of a service.
func (w *world) untilTrouble(reason string) {
	w.t.Helper()
	w.until("trouble: "+reason, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.trouble) > 0 && w.trouble[len(w.trouble)-1].Reason == reason
	})
}

// A wake ends as soon as kubelet says that it cannot start the pod, long before the wake's timeout.
func TestMissingConfigMapEndsTheStart(t *testing.T) {
	w := newWorld(t, 0)
	out := w.start(t.Context(), runtime.StartHooks{})
	o := w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
	w.says(o, corev1.EventTypeWarning, "FailedMount",
		`MountVolume.SetUp failed for volume "conf" : configmap "missing" not found`)
	got := get(w, out)
	const want = `pod app-1 on node n1: a volume cannot be mounted (FailedMount: MountVolume.SetUp failed for volume ` +
		`"conf" : configmap "missing" not found)`
	if got.err == nil || !strings.HasSuffix(got.err.Error(), want) {
		t.Errorf("%v, want %s", got.err, want)
	}
}

// What may pass is told while the start waits.
func TestWarningsOfKubeletAreTold(t *testing.T) {
	w := newWorld(t, 0)
	told := make(chan string, 16)
	ctx, cancel := context.WithCancel(t.Context())
	out := w.start(ctx, runtime.StartHooks{Waits: func(why string) { told <- why }})
	o := w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
	w.says(o, corev1.EventTypeNormal, "Pulling", `Pulling image "a/b:1"`)
	if got := get(w, told); got != `node n1 is pulling image "a/b:1" for pod app-1` {
		t.Errorf("told %q", got)
	}
	w.says(o, corev1.EventTypeWarning, "FailedCreatePodSandBox", "no addresses left.")
	const want = "pod app-1 on node n1: its sandbox cannot be made (FailedCreatePodSandBox: no addresses left)"
	if got := get(w, told); got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	w.untilTrouble(want)
	cancel()
	if got := get(w, out); got.err == nil {
		t.Error("the start has not ended")
	}
}

// A pod that no Start waits for, such as one of a rollout, is explained as well.
func TestPodOfARolloutIsExplained(t *testing.T) {
	w := newWorld(t, 1)
	o := w.apiPod(func(o *corev1.Pod) { o.Spec.NodeName = "n1" })
	w.says(o, corev1.EventTypeWarning, "FailedMount", `MountVolume.SetUp failed for volume "s" : secret "key" not found`)
	w.until("the trouble", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.trouble) > 0 && strings.Contains(w.trouble[len(w.trouble)-1].Reason, `secret "key" not found`)
	})
}

func TestOnlyWarningsThatNeverPassEndAStart(t *testing.T) {
	event := func(reason, message string, age time.Duration) corev1.Event {
		return corev1.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message,
			LastTimestamp: metav1.NewTime(time.Now().Add(-age))}
	}
	const mount = `MountVolume.SetUp failed for volume "v" : `
	for _, c := range []struct {
		reason, message string
		fatal           bool
	}{
		{"FailedMount", mount + `configmap "a" not found`, true},
		{"FailedMount", mount + `secret "a" not found`, true},
		{"FailedMount", mount + `references non-existent config key: k`, true},
		{"FailedMount", mount + `hostPath type check failed: /x is not a directory`, true},
		{"FailedMount", `MountVolume.NewMounter initialization failed for volume "pv" : path "/x" does not exist`, true},
		{"FailedMount", mount + `object "default"/"a" not registered`, false},
		{"FailedMount", mount + `failed to sync configmap cache: timed out waiting for the condition`, false},
		{"FailedAttachVolume", `Multi-Attach error for volume "v"`, false},
		{"FailedCreatePodSandBox", `plugin type="x" failed (add): not found`, false},
	} {
		got := eventTrouble("p", "n", []corev1.Event{event(c.reason, c.message, 0)})
		if got.fatal != c.fatal || !strings.Contains(got.reason, c.message) {
			t.Errorf("%s: %s: %+v", c.reason, c.message, got)
		}
	}
	got := eventTrouble("p", "n", []corev1.Event{
		event("FailedMount", "old", time.Minute), event("FailedSync", "new", 0), event("Unhealthy", "a probe", 0),
	})
	if !strings.Contains(got.reason, "new") {
		t.Errorf("the latest warning: %+v", got)
	}
	if got := startNews("p", "", nil); got != "pod p is not bound to a node yet" {
		t.Error(got)
	}
	if got := startNews("p", "n", []corev1.Event{event("Pulling", `Pulling image "a"`, time.Second),
		event("Pulled", `Successfully pulled image "a"`, 0)}); got != "node n has not started pod p yet" {
		t.Error(got)
	}
}
