// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

func TestStartAndStopAPod(t *testing.T) {
	w := newWorld(t, 0)
	var phases []runtime.Phase
	var delivered runtime.Pod
	out := w.start(t.Context(), runtime.StartHooks{
		Phase:   func(p runtime.Phase, _ monotime.Time) { phases = append(phases, p) },
		Network: func(p runtime.Pod) { delivered = p },
	})
	w.report("u1", network, network, created, started, started)
	got := get(w, out)
	if got.err != nil || got.pod.ID != "u1" || got.pod.Started == 0 || got.pod.SpecHash != "h" ||
		got.pod.NodeAddr.String() != "192.0.2.1" {
		t.Fatalf("%+v, %v", got.pod, got.err)
	}
	want := []runtime.Phase{runtime.PhaseSandbox, runtime.PhaseCreated, runtime.PhaseStarted}
	if !slices.Equal(phases, want) || delivered.ID != "u1" || delivered.Netns != "/run/netns/u1" ||
		delivered.Started != 0 {
		t.Errorf("phases %v, network %+v", phases, delivered)
	}
	if w.writes() != "[1]" {
		t.Errorf("wrote %s", w.writes())
	}
	stopped := make(chan error, 2)
	for range 2 {
		go func() { stopped <- w.r.Stop(context.Background(), "u1", 30*time.Second) }()
	}
	w.until("the write of 0", func() bool { return w.writes() == "[1 0]" })
	if pods, _ := w.r.List(t.Context()); len(pods) != 0 {
		t.Errorf("a pod that is being stopped is listed: %+v", pods)
	}
	nothing(w, "Stop returned before the pod is gone", stopped)
	w.report("u1", exited, gone)
	for range 2 {
		if err := get(w, stopped); err != nil {
			t.Error(err)
		}
	}
	if e := get(w, w.r.Exits()); e.PodID != "u1" || e.Code != 7 {
		t.Errorf("exit %+v", e)
	}
	w.report("u1", network, started, gone) // late reports
	if err := w.r.Stop(t.Context(), "u1", time.Second); err != nil || w.writes() != "[1 0]" {
		t.Errorf("%v, wrote %s", err, w.writes())
	}
	nothing(w, "it appeared again", w.r.Appeared())
}

// The pod that is stopped is marked as the victim and deleted by name.
func TestStopEndsThatVeryPod(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	w.up("app-2")
	w.apiPod(nil)
	o := w.apiPod(nil)
	stopped := make(chan error, 1)
	go func() { stopped <- w.r.Stop(context.Background(), "app-2", 5*time.Second) }()
	if err := get(w, stopped); err != nil { // the watch reports that it is gone
		t.Error(err)
	}
	if w.writes() != "[1 2 1]" {
		t.Errorf("wrote %s", w.writes())
	}
	var marked, deleted bool
	for _, a := range w.client.Actions() {
		if a.GetResource().Resource != "pods" {
			continue
		}
		marked = marked || a.GetVerb() == "patch"
		deleted = deleted || a.GetVerb() == "delete"
	}
	if !marked || !deleted {
		t.Errorf("marked %v, deleted %v: %s", marked, deleted, o.Name)
	}
	if e := get(w, w.r.Exits()); e.PodID != "app-2" {
		t.Errorf("exit %+v", e)
	}
}

// The ReplicaSet replaces a pod that is deleted by others, and a Start gets the replacement: nothing is written.
func TestStartGetsTheReplacementOfADeletedPod(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	o := w.apiPod(nil)
	w.update(o, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	if l := get(w, w.r.Leaving()); l != (runtime.Leave{PodID: "app-1"}) {
		t.Errorf("%+v leaves", l)
	}
	w.up("app-2")
	if w.writes() != "[1]" {
		t.Errorf("wrote %s", w.writes())
	}
	stopped := make(chan error, 1)
	go func() { stopped <- w.r.Stop(context.Background(), "app-1", 30*time.Second) }() // its owner cleans up
	w.until("Stop waits", func() bool { w.r.mu.Lock(); defer w.r.mu.Unlock(); return w.r.byUID["app-1"].is(podStopping) })
	w.report("app-1", exited, gone)
	if err := get(w, stopped); err != nil || w.writes() != "[1]" {
		t.Errorf("%v, wrote %s", err, w.writes())
	}
}

// A rollout has one pod more than is wanted. The Deployment ends it, without a write of the Runtime.
func TestStopInARolloutLeavesThePodToTheDeployment(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	w.report("app-2", network, created, started)
	if p := get(w, w.r.Appeared()); p.ID != "app-2" || p.Netns == "" {
		t.Errorf("appeared %+v", p)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- w.r.Stop(context.Background(), "app-1", 30*time.Second) }()
	w.until("Stop waits", func() bool { w.r.mu.Lock(); defer w.r.mu.Unlock(); return w.r.byUID["app-1"].is(podStopping) })
	w.report("app-1", exited, gone) // the Deployment deleted it
	if err := get(w, stopped); err != nil || w.writes() != "[1]" {
		t.Errorf("%v, wrote %s", err, w.writes())
	}
	go func() { stopped <- w.r.Stop(context.Background(), "app-2", 30*time.Second) }()
	w.until("the write of 0", func() bool { return w.writes() == "[1 0]" })
	w.report("app-2", gone)
	if err := get(w, stopped); err != nil {
		t.Error(err)
	}
}

// A pod that the previous controller asked for is enough for a Start.
func TestStartGetsAPodThatIsWantedAlready(t *testing.T) {
	w := newWorld(t, 1)
	w.up("app-1")
	if w.writes() != "[]" {
		t.Errorf("wrote %s", w.writes())
	}
}

// Pods of the previous controller are listed. They have no address until their daemon reports them; then they appear.
func TestInheritedPodsAreListedAndAppear(t *testing.T) {
	w := newWorld(t, 1)
	w.apiPod(func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.1", HostIP: "192.0.2.1",
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "app", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}}}
	})
	w.r.Close()
	w.open()
	pods, err := w.r.List(t.Context())
	if err != nil || len(pods) != 1 || pods[0].Addr.IsValid() || pods[0].Started == 0 || pods[0].SpecHash != "h" {
		t.Fatalf("%+v, %v", pods, err)
	}
	w.report("app-1", network)
	if p := get(w, w.r.Appeared()); p.ID != "app-1" || p.Netns == "" || p.Started == 0 {
		t.Errorf("appeared %+v", p)
	}
}

func TestStartFailsWhenTheImageCannotBePulled(t *testing.T) {
	for _, reported := range []bool{false, true} { // whether a daemon has reported the sandbox
		w := newWorld(t, 0)
		out := w.start(t.Context(), runtime.StartHooks{})
		o := w.apiPod(nil)
		if reported {
			w.report("app-1", network)
		}
		w.update(o, func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodPending,
				ContainerStatuses: []corev1.ContainerStatus{{Name: "app", Image: "a/b:1",
					State: waiting("ErrImagePull", "no such tag")}}}
		})
		got := get(w, out)
		if !errors.Is(got.err, runtime.ErrImage) || !strings.HasPrefix(got.err.Error(),
			`service default/app: pod app-1: image "a/b:1" cannot be pulled: no such tag`) {
			t.Errorf("got %v", got.err)
		}
		w.until("the replica is taken back", func() bool { return w.writes() == "[1 0]" })
		if pods, _ := w.r.List(t.Context()); len(pods) != 0 {
			t.Errorf("left: %+v", pods)
		}
	}
}

func TestStartSaysWhyAPodIsUnschedulable(t *testing.T) {
	w := newWorld(t, 0)
	s := w.service()
	s.Spec.WakeTimeout = 3
	out := w.startOf(t.Context(), s, runtime.StartHooks{})
	w.apiPod(func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Message: "0/1 nodes are available."}}
	})
	got := get(w, out)
	if got.err == nil || errors.Is(got.err, runtime.ErrUnavailable) ||
		got.err.Error() != "service default/app: waited 2.7s: no node takes pod app-1: 0/1 nodes are available" {
		t.Errorf("got %v", got.err)
	}
	w.until("the trouble and its end are reported", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.trouble) == 2 && w.trouble[0].Unschedulable && w.trouble[1] == Trouble{}
	})
	w.until("the replica is taken back", func() bool { return w.writes() == "[1 0]" })
}

// A Start whose pod is deleted may work a moment later, with the pod that replaces it.
func TestStartIsRetryableWhenItsPodIsDeleted(t *testing.T) {
	w := newWorld(t, 0)
	out := w.start(t.Context(), runtime.StartHooks{})
	w.report("app-1", network)
	o := w.apiPod(nil)
	w.update(o, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	if got := get(w, out); !errors.Is(got.err, runtime.ErrUnavailable) {
		t.Errorf("got %v", got.err)
	}
	w.up("app-2")
	if w.writes() != "[1]" {
		t.Errorf("wrote %s", w.writes())
	}
	nothing(w, "a pod leaves that was never delivered", w.r.Leaving())
}

func TestCancelledStartTakesItsReplicaBack(t *testing.T) {
	w := newWorld(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	out := w.start(ctx, runtime.StartHooks{})
	cancel()
	if got := get(w, out); !errors.Is(got.err, context.Canceled) {
		t.Errorf("got %v", got.err)
	}
	w.until("the replica is taken back", func() bool { return w.writes() == "[1 0]" })
}

// The exit of a process that ends before its Start has returned is delivered after that.
func TestExitDuringStartIsDeliveredAfterIt(t *testing.T) {
	w := newWorld(t, 0)
	out := w.start(t.Context(), runtime.StartHooks{})
	w.report("u1", network, created, started, exited)
	if got := get(w, out); got.err != nil || got.pod.ID != "u1" {
		t.Fatalf("%+v, %v", got.pod, got.err)
	}
	if e := get(w, w.r.Exits()); e.PodID != "u1" || e.Code != 7 {
		t.Errorf("exit %+v", e)
	}
	if pods, _ := w.r.List(t.Context()); len(pods) != 1 || pods[0].Started != 0 {
		t.Errorf("listed as %+v", pods)
	}
}

func TestExitOfASidecarIsIgnored(t *testing.T) {
	w := newWorld(t, 0)
	w.up("u1")
	w.r.ReportPod(runtime.PodReport{Event: exited, Container: "side", Pod: runtime.Pod{ID: "u1", Service: "default/app"}})
	nothing(w, "a sidecar's exit is delivered as the pod's", w.r.Exits())
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if w.r.byUID["u1"].is(podExited) {
		t.Error("a sidecar's exit is recorded as the pod's")
	}
}

// When the API server fails, a Start is retryable, and a number whose write was not confirmed is written again.
func TestStartIsRetryableWhenTheAPIServerFails(t *testing.T) {
	w := newWorld(t, 0)
	set := func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fail = err
	}
	set(apierrors.NewInternalError(errors.New("etcd is down")))
	if got := get(w, w.start(t.Context(), runtime.StartHooks{})); !errors.Is(got.err, runtime.ErrUnavailable) ||
		!strings.Contains(got.err.Error(), "write replicas 1 of Deployment app") {
		t.Errorf("got %v", got.err)
	}
	set(nil)
	w.until("0 is written, although the 1 was not confirmed", func() bool { return w.writes() == "[0]" })
	set(apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "app", errors.New("no")))
	if got := get(w, w.start(t.Context(), runtime.StartHooks{})); errors.Is(got.err, runtime.ErrUnavailable) ||
		!strings.Contains(got.err.Error(), "check the controller's ClusterRole") {
		t.Errorf("got %v", got.err)
	}
}

// A Deployment that is created again while a Start waits is scaled again.
func TestWaitingStartScalesARecreatedDeployment(t *testing.T) {
	w := newWorld(t, 0)
	out := w.start(t.Context(), runtime.StartHooks{})
	if err := w.client.AppsV1().Deployments("default").Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.version++
	next := w.deployment(0)
	w.mu.Unlock()
	next.UID = "another"
	if _, err := w.client.AppsV1().Deployments("default").Create(t.Context(), next, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("a second write", func() bool { return w.writes() == "[1 1]" })
	w.report("u1", network, created, started)
	if got := get(w, out); got.err != nil {
		t.Error(got.err)
	}
}

// An evicted pod does not come back: its ReplicaSet replaces it.
func TestEvictedPodExits(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	o := w.apiPod(nil)
	w.update(o, func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk"}
	})
	if e := get(w, w.r.Exits()); e.PodID != "app-1" {
		t.Errorf("exit %+v", e)
	}
	if err := w.r.Stop(t.Context(), "app-1", time.Second); err != nil {
		t.Error(err)
	}
	if w.writes() != "[1]" {
		t.Errorf("wrote %s", w.writes())
	}
}
