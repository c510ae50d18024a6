// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"wangell.loutres.me/internal/decide/reservation"
)

// reserving makes a pod request something.
func reserving(p *corev1.Pod) {
	p.Spec.NodeName, p.Status.QOSClass = "n1", corev1.PodQOSBurstable
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
	}
}

// freeze has a pod frozen for long enough.
func (w *world) freeze(uid string) {
	w.r.SetFrozen(uid, true)
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.byUID[uid].lending.since = time.Now().Add(-lendAfter)
	w.r.resizes.Add(uid)
}

// requested returns the requests of a pod in the API, with "noted" if others are to come back.
func (w *world) requested(name string) string {
	w.t.Helper()
	o, err := w.client.CoreV1().Pods("default").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	r := o.Spec.Containers[0].Resources.Requests
	text := r.Cpu().String() + " " + r.Memory().String()
	if reservation.Noted(o) {
		text += " noted"
	}
	return text
}

func (w *world) untilRequested(name, want string) {
	w.t.Helper()
	w.until(name+" requests "+want, func() bool { return w.requested(name) == want })
}

// answer has requests to resize pods answered with an error; nil lets them pass again.
func (w *world) answer(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = err
}

// newReservingWorld has a pod. Its API server gives each state of a pod a resource version, and answers requests to
// resize pods with the error that answer has set.
func newReservingWorld(t *testing.T) *world {
	w := newWorld(t, 1)
	write := clienttesting.ObjectReaction(w.client.Tracker())
	for _, verb := range []string{"patch", "update"} {
		w.client.PrependReactor(verb, "pods", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if a.GetSubresource() == "resize" && w.fail != nil {
				return true, nil, w.fail
			}
			_, o, err := write(a)
			if err != nil {
				return true, nil, err
			}
			w.version++
			p := o.(*corev1.Pod).DeepCopy()
			p.ResourceVersion = strconv.Itoa(w.version)
			return true, p, w.client.Tracker().Update(podsGVR, p, p.Namespace)
		})
	}
	w.apiPod(reserving)
	return w
}

func TestFrozenPodReservesAlmostNothing(t *testing.T) {
	w := newReservingWorld(t)
	w.freeze("app-1")
	w.untilRequested("app-1", "1m 8Mi noted")
	w.until("what it gives back is counted", func() bool {
		r := w.r.Reservations("default/app")
		return r.CPU > 0.498 && r.CPU < 0.5 && r.Memory == 56<<20 && r.Short+r.Kept == ""
	})
	w.r.SetFrozen("app-1", false)
	w.untilRequested("app-1", "500m 64Mi")
	w.until("nothing is given back", func() bool { return w.r.Reservations("default/app") == reservation.Summary{} })
}

// The next controller hears from the node's daemon whether the pod is frozen.
func TestNextControllerGivesAPodItsRequestsBack(t *testing.T) {
	w := newReservingWorld(t)
	w.freeze("app-1")
	w.untilRequested("app-1", "1m 8Mi noted")
	w.r.Close()
	w.open()
	w.r.SetFrozen("app-1", true)
	w.r.SetFrozen("app-1", false)
	w.untilRequested("app-1", "500m 64Mi")
}

func TestPodsAreFrozenWhereTheyCannotBeResized(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"an older Kubernetes": {
			apierrors.NewGenericServerResponse(404, "PATCH", pods, "app-1", "404 page not found", 0, true),
			"frozen pods keep their requests: the API server cannot resize pods, which Kubernetes 1.33 and later do",
		},
		"a missing right": {apierrors.NewForbidden(pods, "app-1",
			errors.New(`User "wangell" cannot patch resource "pods/resize" in API group ""`)),
			"frozen pods keep their requests: the controller may not resize pods: its ClusterRole lacks patch of pods/resize"},
		"a LimitRange": {apierrors.NewForbidden(pods, "app-1", errors.New("minimum cpu usage per Container is 10m")),
			"pod app-1 keeps requests while it is frozen: "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReservingWorld(t)
			w.answer(c.err)
			w.freeze("app-1")
			w.until("it says so", func() bool {
				return strings.HasPrefix(w.r.Reservations("default/app").Kept, c.want)
			})
			w.untilRequested("app-1", "500m 64Mi") // and no note is left
			w.r.SetFrozen("app-1", false)
			w.until("it runs", func() bool { return w.r.Reservations("default/app").Kept == "" })
		})
	}
}

// A quota that is used up while the pod was frozen: it runs on, and gets its requests back once there is room.
func TestPodWithoutRoomForItsRequestsRuns(t *testing.T) {
	w := newReservingWorld(t)
	w.freeze("app-1")
	w.untilRequested("app-1", "1m 8Mi noted")
	w.answer(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "app-1", errors.New("exceeded quota: q")))
	w.r.SetFrozen("app-1", false)
	w.until("it says so", func() bool {
		return strings.Contains(w.r.Reservations("default/app").Short, "exceeded quota: q")
	})
	w.answer(nil)
	w.untilRequested("app-1", "500m 64Mi")
	w.until("nothing is short", func() bool { return w.r.Reservations("default/app").Short == "" })
}

// The right to resize pods is lost while a pod has given its requests back, as in a chart that is changed.
func TestPodGetsItsRequestsBackOnceItMayBeResizedAgain(t *testing.T) {
	w := newReservingWorld(t)
	w.freeze("app-1")
	w.untilRequested("app-1", "1m 8Mi noted")
	w.answer(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "app-1",
		errors.New(`User "wangell" cannot patch resource "pods/resize" in API group ""`)))
	w.r.SetFrozen("app-1", false)
	w.until("it says so", func() bool {
		return strings.HasPrefix(w.r.Reservations("default/app").Short,
			"pod app-1 runs with less reserved than it requests: the controller may not resize pods")
	})
	w.until("it is tried again, with growing pauses", func() bool { return w.r.resizeBackoff.NumRequeues("app-1") > 2 })
	w.answer(nil)
	w.untilRequested("app-1", "500m 64Mi")
}

// kubelet defers a resize for which its node has no room.
func TestNodeWithoutRoomIsNamed(t *testing.T) {
	w := newReservingWorld(t)
	w.r.SetFrozen("app-1", false)
	o, err := w.client.CoreV1().Pods("default").Get(t.Context(), "app-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.update(o, func(o *corev1.Pod) {
		o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
			Reason: corev1.PodReasonDeferred, Message: "Node didn't have enough resource: cpu"}}
	})
	w.until("the node is named", func() bool {
		return w.r.Reservations("default/app").Short == "pod app-1 runs with less reserved than it requests, because "+
			"node n1 has no room for it: Node didn't have enough resource: cpu"
	})
}

// kubelet of a node with swap refuses to change the memory of containers.
func TestMemoryThatKubeletDoesNotResizeStaysReserved(t *testing.T) {
	w := newReservingWorld(t)
	w.freeze("app-1")
	w.untilRequested("app-1", "1m 8Mi noted")
	o, err := w.client.CoreV1().Pods("default").Get(t.Context(), "app-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.update(o, func(o *corev1.Pod) {
		o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
			Reason: corev1.PodReasonInfeasible, Message: "containers with swap"}}
	})
	w.untilRequested("app-1", "1m 64Mi noted")
	w.until("it says so", func() bool {
		return w.r.Reservations("default/app").Kept == "pod app-1 keeps requests while it is frozen: containers with swap"
	})
	w.r.SetFrozen("app-1", false)
	w.untilRequested("app-1", "500m 64Mi")
}

// Pods that the daemon of their node does not report have their requests back after a while, also if they stay frozen.
func TestPodThatNobodyReportsGetsItsRequestsBackInTime(t *testing.T) {
	opened := time.Unix(1000, 0)
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{reservation.Annotation: `{"app":{"cpu":"1"}}`},
	}}
	l := lending{pod: o}
	if step, at, err := l.next(opened, opened, true); step.Patch != nil || !at.Equal(opened.Add(reportPatience)) ||
		err != nil {
		t.Errorf("at first: %s, %s, %v", step.Patch, at, err)
	}
	if step, _, err := l.next(opened.Add(reportPatience), opened, true); step.Patch == nil || step.Lowers || err != nil {
		t.Errorf("after that: %s, %v", step.Patch, err)
	}
}

func TestPodThatIsFrozenBrieflyKeepsItsRequests(t *testing.T) {
	now := time.Unix(1000, 0)
	o := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}}
	reserving(o)
	l := lending{pod: o, still: stillFrozen, since: now}
	if step, at, _ := l.next(now, now, true); step.Patch != nil || !at.Equal(now.Add(lendAfter)) {
		t.Errorf("at once: %s, %s", step.Patch, at)
	}
	if step, _, _ := l.next(now.Add(lendAfter), now, true); !step.Lowers {
		t.Error("it gives nothing back")
	}
	if step, _, _ := l.next(now.Add(lendAfter), now, false); step.Patch != nil {
		t.Errorf("although resizing is not possible: %s", step.Patch)
	}
}
