// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"wangell.loutres.me/internal/base/backoff"
)

// What holds up a pod whose containers kubelet has not made yet is in Events alone: its status says ContainerCreating.
// They are read from explainAfter on, and again after pauses that double up to explainPauseMax, until its process runs.
const (
	explainAfter    = time.Second
	explainPause    = time.Second
	explainPauseMax = 8 * time.Second
	// maxExplaining bounds the requests for Events at a time. A pod beyond that is examined after its next pause.
	maxExplaining = 8
)

// explainPod finds out why a pod does not start, as long as it does not.
func (r *Runtime) explainPod(p *pod) {
	var pause time.Duration
	for r.explain(p) {
		pause = backoff.Next(pause, explainPause, explainPauseMax)
		select {
		case <-time.After(pause):
		case <-p.gone:
			return
		case <-r.ctx.Done():
			return
		}
	}
}

// explain looks once for the reason why a pod does not start. It returns false if the pod has started or never will.
func (r *Runtime) explain(p *pod) (again bool) {
	select {
	case r.explaining <- struct{}{}:
		defer func() { <-r.explaining }()
	default:
		return true
	}
	r.mu.Lock()
	starts := r.startsStill(p)
	r.mu.Unlock()
	if !starts {
		return false
	}
	events, err := r.api.podEvents(r.ctx, p.service.namespace, p.name, p.rt.ID)
	if err != nil {
		r.log.Debug("the Events of a pod cannot be read", "pod", p.name, "error", err)
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.startsStill(p) {
		return false
	}
	t, news := eventTrouble(p.name, p.node, events), startNews(p.name, p.node, events)
	w := p.waiter
	if w == nil && !p.is(podDelivered) && len(p.service.waiters) > 0 {
		w = p.service.waiters[0]
	}
	switch {
	case t.reason == "" && w != nil && w.heldUp == "":
		w.say(news)
	case t.reason != "":
		r.holdUp(p, w, t)
	}
	return true
}

// startsStill reports whether a pod is about to start. The lock is held.
func (r *Runtime) startsStill(p *pod) bool {
	return r.byUID[p.rt.ID] == p && p.stays() && p.rt.Started == 0 && !p.over()
}

// podEvents returns the Events about a pod.
func (q *requests) podEvents(ctx context.Context, namespace, name, uid string) ([]corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := q.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": name}.String(),
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return string(e.InvolvedObject.UID) != uid }), nil
}

// eventReasons are warnings of kubelet and of volume controllers, and what each means. Those that a pod's status has as
// well are left out, see troubleOf.
var eventReasons = map[string]string{
	"FailedMount":            "a volume cannot be mounted",
	"FailedMapVolume":        "a volume cannot be mounted",
	"FailedAttachVolume":     "a volume cannot be attached",
	"FailedBinding":          "a volume cannot be bound",
	"FailedCreatePodSandBox": "its sandbox cannot be made",
	"FailedPodSandBoxStatus": "the state of its sandbox is not known",
	"NetworkNotReady":        "the network of the node is not ready",
	"FailedPostStartHook":    "the postStart hook failed",
	"FailedSync":             "kubelet cannot start it",
	"HostPortConflict":       "its hostPort is taken",
	"Failed":                 "a container cannot be started",
}

// eventTrouble returns why kubelet does not start a pod, by its latest warning; the zero value if there is none.
func eventTrouble(pod, node string, events []corev1.Event) trouble {
	last := latest(events, func(e *corev1.Event) bool {
		return e.Type == corev1.EventTypeWarning && eventReasons[e.Reason] != ""
	})
	if last == nil {
		return trouble{}
	}
	what := fmt.Sprintf("%s (%s)", eventReasons[last.Reason], because(last.Reason, last.Message))
	return trouble{reason: fmt.Sprintf("pod %s%s: %s", pod, onNode(node), what), fatal: hopeless(last)}
}

// hopeless reports whether a warning says that a pod starts only after somebody has changed something. Others may pass:
// kubelet tries again, networks become ready, disks are detached elsewhere.
func hopeless(e *corev1.Event) bool {
	if e.Reason != "FailedMount" {
		return false
	}
	m := e.Message
	switch {
	case strings.Contains(m, `configmap "`), strings.Contains(m, `secret "`):
		return strings.HasSuffix(strings.TrimSpace(m), "not found")
	case strings.Contains(m, "references non-existent"), strings.Contains(m, "hostPath type check failed"):
		return true
	}
	return strings.Contains(m, "NewMounter initialization failed") && strings.Contains(m, "does not exist")
}

// startNews says how far the start of a pod has come, if nothing is wrong with it.
func startNews(pod, node string, events []corev1.Event) string {
	if node == "" {
		return fmt.Sprintf("pod %s is not bound to a node yet", pod)
	}
	last := latest(events, func(e *corev1.Event) bool {
		return slices.Contains([]string{"Pulling", "Pulled", "Created", "Started"}, e.Reason)
	})
	if last != nil && last.Reason == "Pulling" {
		_, image, _ := strings.Cut(last.Message, "image ")
		return fmt.Sprintf("node %s is pulling image %s for pod %s", node, strings.TrimSpace(image), pod)
	}
	return fmt.Sprintf("node %s has not started pod %s yet", node, pod)
}

// latest returns the event that was seen last, of those that match; nil if there is none.
func latest(events []corev1.Event, match func(*corev1.Event) bool) (last *corev1.Event) {
	for i := range events {
		if e := &events[i]; match(e) && (last == nil || !seen(e).Before(seen(last))) {
			last = e
		}
	}
	return last
}

// seen is when an event was seen last.
func seen(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.FirstTimestamp.Time, e.EventTime.Time, e.LastTimestamp.Time} {
		if t.After(at) {
			at = t
		}
	}
	if s := e.Series; s != nil && s.LastObservedTime.After(at) {
		at = s.LastObservedTime.Time
	}
	return at
}

// onNode names a node after a pod; empty if it is not known.
func onNode(node string) string {
	if node == "" {
		return ""
	}
	return " on node " + node
}
