// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/wire"
)

// event waits for an Event of an object and returns it.
func (w *world) event(namespace, kind, name, reason string) (found eventsv1.Event) {
	w.t.Helper()
	w.until(fmt.Sprintf("Event %s of %s %s", reason, kind, name), func() bool {
		var list eventsv1.EventList
		if err := w.client.List(w.t.Context(), &list, client.InNamespace(namespace)); err != nil {
			w.t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.Regarding.Kind == kind && e.Regarding.Name == name && e.Reason == reason {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// A budget of wakes that clients exceed is an Event of its service that names their prefix, and a condition until it is
// over. A table that is almost full is an Event of its node, and a condition of the services in use.
func TestPressureOnGatesIsTold(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("web")
	w.apply("asleep")
	a := w.vip("web")
	w.vip("asleep")
	const kind = v1alpha1.ConditionGatePressure
	w.condition("web", kind, metav1.ConditionFalse, "NoPressure")

	spent := wire.Alert{
		Kind: wire.AlertServiceWakes, Service: a, Source: netip.MustParsePrefix("192.0.2.0/24"),
	}
	w.d.client.Send(&spent)
	const text = "node node-1: clients exceed the budget of wakes of the service, one of them in 192.0.2.0/24: " +
		"they have to prove where they are"
	if e := w.event(w.namespace, "WangellService", "web", string(v1alpha1.EventWakesLimited)); e.Note != text ||
		e.Type != corev1.EventTypeWarning || e.Regarding.UID != w.service("web").UID {
		t.Errorf("%+v", e)
	}
	if got := w.condition("web", kind, metav1.ConditionTrue, string(v1alpha1.EventWakesLimited)); got != text {
		t.Errorf("condition: %q", got)
	}
	if got := w.service("web").Status.Message; got != text {
		t.Errorf("message: %q", got)
	}
	over := spent
	over.Over = true
	w.d.client.Send(&over)
	w.condition("web", kind, metav1.ConditionFalse, "NoPressure")

	w.d.syn(a)
	w.until("a pod serves", func() bool { return w.d.serving(a) == 1 })
	full := wire.Alert{Kind: wire.AlertParked, Used: 3500, Size: 4096}
	w.d.client.Send(&full)
	const fullText = "node node-1: the gate's table parked is almost full: 3500 of 4096 entries (--parked)"
	if e := w.event("default", "Node", "node-1", string(v1alpha1.EventTableAlmostFull)); e.Note != fullText ||
		e.Type != corev1.EventTypeWarning || e.Regarding.UID != "node-1" {
		t.Errorf("%+v", e)
	}
	if got := w.condition("web", kind, metav1.ConditionTrue, string(v1alpha1.EventTableAlmostFull)); got != fullText {
		t.Errorf("condition: %q", got)
	}
	w.condition("asleep", kind, metav1.ConditionFalse, "NoPressure")
	over = full
	over.Over = true
	w.d.client.Send(&over)
	w.condition("web", kind, metav1.ConditionFalse, "NoPressure")
}
