// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

// kubeEvent is an Event of Kubernetes. The zero value stands for no Event.
type kubeEvent struct {
	reason v1alpha1.EventReason
	note   string
}

// maxNote is the most bytes that the note of an Event may have.
const maxNote = 1024

// narrator translates the controller's events into those of Kubernetes. It remembers the last report of each service,
// which is the reason of the state that follows it.
type narrator struct {
	last map[v1alpha1.Key]status.Event
}

// eventOf returns the Event for one of the controller's.
func (n *narrator) eventOf(e status.Event) kubeEvent {
	why := func(otherwise string) string { return cmp.Or(n.last[e.Service].Text, otherwise) }
	switch {
	case e.Service == "" && e.Kind != status.EventPressure:
		return kubeEvent{}
	case e.Kind == status.EventState && e.State == lifecycle.Warm.String():
		return kubeEvent{v1alpha1.EventWoke, why("a pod serves")}
	case e.Kind == status.EventState && e.State == lifecycle.Cold.String():
		defer delete(n.last, e.Service)
		return kubeEvent{v1alpha1.EventSlept, why("no pod is left")}
	case e.Reason == v1alpha1.EventDenied: // it explains no state
	case e.Kind == status.EventReport:
		n.last[e.Service] = e
	}
	if e.Reason == "" {
		return kubeEvent{}
	}
	return kubeEvent{e.Reason, e.Text}
}

// narrate records Events until ctx ends or the controller does.
func (r *reconciler) narrate(ctx context.Context, happened <-chan status.Event) {
	n := narrator{last: map[v1alpha1.Key]status.Event{}}
	for e := range happened {
		k := n.eventOf(e)
		if k.reason == "" {
			continue
		}
		if about := r.subject(ctx, e); about != nil {
			r.record(about, k)
		}
	}
}

// record records an Event about an object, whose type and action follow from its reason.
func (r *reconciler) record(about kuberuntime.Object, k kubeEvent) {
	d, kind := v1alpha1.EventReasons[k.reason], corev1.EventTypeNormal
	if d.Warning {
		kind = corev1.EventTypeWarning
	}
	r.recorder.Eventf(about, nil, kind, string(k.reason), d.Action, "%s", text.Shorten(k.note, maxNote))
}

// subject returns the object of an Event: the service, or the node if the event names no service. It is nil if the
// service was deleted.
func (r *reconciler) subject(ctx context.Context, e status.Event) kuberuntime.Object {
	if e.Service == "" {
		// As in kubelet's Events, the UID is the node's name: "kubectl describe node" finds them, and the node need
		// not be read.
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.Node, UID: types.UID(e.Node)}
	}
	var s v1alpha1.WangellService
	namespace, name := e.Service.Split()
	if r.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &s) != nil {
		return nil
	}
	return &s
}
