// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"strings"

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
type kubeEvent struct{ kind, reason, action, note string }

// maxNote is the most bytes that the note of an Event may have.
const maxNote = 1024

// narrator translates the controller's events into those of Kubernetes. It remembers the last report of each service,
// which is the reason of the state that follows it.
type narrator struct {
	last map[v1alpha1.Key]status.Event
}

// eventOf returns the Event for one of the controller's.
func (n *narrator) eventOf(e status.Event) kubeEvent {
	normal, warning := corev1.EventTypeNormal, corev1.EventTypeWarning
	last := n.last[e.Service]
	why := func(otherwise string) string {
		if last.Text == "" {
			return otherwise
		}
		return last.Text
	}
	switch {
	case e.Kind == status.EventPressure:
		return kubeEvent{warning, e.Reason, "Connect", e.Text} // it explains no state
	case e.Service == "":
	case e.Kind == status.EventReport && strings.HasPrefix(e.Text, "denied"):
		return kubeEvent{warning, "Denied", "Connect", e.Text} // it explains no state
	case e.Kind == status.EventImages:
		return kubeEvent{warning, "ImageNotReady", "Pull", e.Text} // likewise
	case e.Kind == status.EventReport:
		n.last[e.Service] = e
		switch {
		case strings.HasPrefix(e.Text, "wake failed"):
			return kubeEvent{warning, "WakeFailed", "Wake", e.Text}
		case strings.HasPrefix(e.Text, "scale"):
			return kubeEvent{normal, "Scaled", "Scale", e.Text}
		case e.Severity != status.SeverityInfo:
			return kubeEvent{warning, "Problem", "Run", e.Text}
		}
	case e.Kind == status.EventState && e.State == lifecycle.Warm.String():
		return kubeEvent{normal, "Woke", "Wake", why("a pod serves")}
	case e.Kind == status.EventState && e.State == lifecycle.Cold.String():
		defer delete(n.last, e.Service)
		return kubeEvent{normal, "Slept", "Sleep", why("no pod is left")}
	}
	return kubeEvent{}
}

// narrate records Events until ctx ends or the controller does.
func (r *reconciler) narrate(ctx context.Context, happened <-chan status.Event) {
	n := narrator{last: map[v1alpha1.Key]status.Event{}}
	for e := range happened {
		k := n.eventOf(e)
		if k.reason == "" {
			continue
		}
		about := r.subject(ctx, e)
		if about != nil {
			r.recorder.Eventf(about, nil, k.kind, k.reason, k.action, "%s", text.Shorten(k.note, maxNote))
		}
	}
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
