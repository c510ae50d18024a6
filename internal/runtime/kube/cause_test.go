// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/runtime"
)

func TestCauseOfAnEndIsWhatThePodsStatusNames(t *testing.T) {
	status := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: message}
	}
	disrupted := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady"},
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message},
		}}
	}
	terminated := func(name, reason, message string) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: reason, Message: message}}}}}
	}
	both := disrupted("TerminationByKubelet", "The node was low on resource: memory.")
	both.Reason, both.Message = "Evicted", "The node was low on resource: memory. "
	again := terminated("app", "Error", "")
	again.ContainerStatuses[0].State = waiting("CrashLoopBackOff", "")
	again.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled"}
	not := disrupted("EvictionByEvictionAPI", "x")
	not.Conditions[1].Status = corev1.ConditionFalse
	const outOfMemory = "out of memory (OOMKilled): its limit is resources.limits.memory"
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   cause
	}{
		"nothing": {corev1.PodStatus{}, cause{}},
		"evicted": {both, cause{"pod p was evicted by its node (Evicted: The node was low on resource: memory)",
			true}},
		"evicted, without a message": {status("Evicted", ""), cause{"pod p was evicted by its node (Evicted)", true}},
		"preempted by kubelet": {status("Preempting", "Preempted in order to admit critical pod"), cause{"pod p was " +
			"preempted by its node in favour of a critical pod (Preempting: Preempted in order to admit critical pod)", true}},
		"preempted": {status("Preempted", ""), cause{"pod p was preempted (Preempted)", true}},
		"deadline": {status("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
			cause{"pod p has run for its activeDeadlineSeconds (DeadlineExceeded: Pod was active on the node longer than " +
				"the specified deadline)", true}},
		"node lost": {status("NodeLost", "Node n1 which was running pod p is unresponsive"), cause{"pod p was on a node " +
			"that is lost (NodeLost: Node n1 which was running pod p is unresponsive)", true}},
		"shutdown": {status("Terminated", "Pod was terminated in response to imminent node shutdown."), cause{"pod p was " +
			"ended because its node shuts down (Terminated: Pod was terminated in response to imminent node shutdown)", true}},
		"no room": {status("OutOfcpu", "Node didn't have enough resource: cpu"), cause{"pod p was refused by its node " +
			"(OutOfcpu: Node didn't have enough resource: cpu)", true}},
		"of the future": {status("Unheard", "of"), cause{"pod p failed (Unheard: of)", true}},
		"preempted by the scheduler": {disrupted("PreemptionByScheduler", "default-scheduler: preempting to accommodate a "+
			"higher priority pod"), cause{"pod p was preempted by the scheduler (PreemptionByScheduler: default-scheduler: " +
			"preempting to accommodate a higher priority pod)", true}},
		"drained": {disrupted("EvictionByEvictionAPI", "Eviction API: evicting"), cause{"pod p was evicted through the " +
			"API, as kubectl drain does it (EvictionByEvictionAPI: Eviction API: evicting)", true}},
		"tainted": {disrupted("DeletionByTaintManager", ""), cause{"pod p was deleted because of a taint of its node " +
			"(DeletionByTaintManager)", true}},
		"another disruption":      {disrupted("Unheard", "of"), cause{"pod p was ended by others (Unheard: of)", true}},
		"no disruption after all": {not, cause{}},
		"out of memory":           {terminated("app", "OOMKilled", ""), cause{outOfMemory, false}},
		"out of memory, restarts": {again, cause{outOfMemory, false}},
		"crashed":                 {terminated("app", "Error", ""), cause{}},
		"finished":                {terminated("app", "Completed", ""), cause{}},
		"lost": {terminated("app", "ContainerStatusUnknown", "The container could not be located"),
			cause{"ContainerStatusUnknown: The container could not be located", false}},
		"another container": {terminated("side", "OOMKilled", ""), cause{}},
	} {
		got := causeOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: c.status}, "app")
		if got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, c.want)
		}
	}
}

// A daemon reports the exit of a process long before kubelet writes why it has ended the pod.
func TestLateCauseOfAnEndIsDelivered(t *testing.T) {
	evicted := func(p *corev1.Pod) {
		p.DeletionTimestamp = &metav1.Time{Time: time.Now()} // by the controller, once the process has ended
		p.Finalizers = []string{"test/keep"}
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource"}
	}
	w := newWorld(t, 0)
	w.up("app-1")
	o := w.apiPod(nil)
	w.report("app-1", exited)
	if e := get(w, w.r.Exits()); e.Cause != "" || e.Explains || e.Outside {
		t.Errorf("exit %+v", e)
	}
	w.update(o, evicted)
	if e := get(w, w.r.Exits()); e.PodID != "app-1" || !e.Explains || !e.Outside ||
		e.Cause != "pod app-1 was evicted by its node (Evicted: The node was low on resource)" {
		t.Errorf("late cause: exit %+v", e)
	}
	w.update(o, func(p *corev1.Pod) { evicted(p); p.Status.Message = "again" })
	w.until("the later status", func() bool {
		w.r.mu.Lock()
		defer w.r.mu.Unlock()
		return w.r.byUID["app-1"].lending.pod.Status.Message == "again"
	})
	nothing(w, "a third exit", w.r.Exits())
}

// When kubelet evicts a pod, its daemon has reported that nothing is left of it before kubelet writes why. Stop does
// not wait for that.
func TestCauseIsDeliveredWhenThePodIsGone(t *testing.T) {
	evicted := func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted",
			Message: "The node was low on resource: memory. "}
	}
	const why = "pod app-1 was evicted by its node (Evicted: The node was low on resource: memory)"
	for name, tell := range map[string]func(*world, *corev1.Pod){
		"changed": func(w *world, o *corev1.Pod) { w.update(o, evicted) },
		"deleted": func(w *world, o *corev1.Pod) { evicted(o); w.r.podDeleted(o) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0)
			w.up("app-1")
			o := w.apiPod(func(p *corev1.Pod) { p.Finalizers = []string{"test/keep"} })
			w.until("the API has the pod", func() bool {
				w.r.mu.Lock()
				defer w.r.mu.Unlock()
				return w.r.byUID["app-1"].owner == ownerReplicaSet
			})
			w.report("app-1", exited)
			if e := get(w, w.r.Exits()); e.Cause != "" || e.Explains {
				t.Errorf("exit %+v", e)
			}
			w.update(o, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }) // as Stop does
			w.until("it is being stopped", func() bool {
				w.r.mu.Lock()
				defer w.r.mu.Unlock()
				return w.r.byUID["app-1"].is(podLeaving)
			})
			w.report("app-1", gone)
			tell(w, o)
			if e := get(w, w.r.Exits()); e.PodID != "app-1" || e.Service != "default/app" || !e.Explains || !e.Outside ||
				e.Cause != why {
				t.Errorf("late cause: exit %+v", e)
			}
			w.r.podDeleted(o)
			nothing(w, "a third exit", w.r.Exits())
			w.r.mu.Lock()
			defer w.r.mu.Unlock()
			if len(w.r.gone.unexplained) > 0 {
				t.Error("it waits for another cause")
			}
		})
	}
}

// A component that evicts or preempts a pod through the API writes that into its status before the deletion.
func TestPodLeavesWithItsCause(t *testing.T) {
	w := newWorld(t, 0)
	w.up("app-1")
	o := w.apiPod(nil)
	w.update(o, func(p *corev1.Pod) {
		p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint"}}
	})
	want := runtime.Leave{PodID: "app-1", Cause: "pod app-1 was deleted because of a taint of its node " +
		"(DeletionByTaintManager: Taint manager: deleting due to NoExecute taint)"}
	if got := get(w, w.r.Leaving()); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
