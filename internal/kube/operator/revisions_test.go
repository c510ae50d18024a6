// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/wire"
)

// shop makes a service whose requests go to v1 and v2, and wakes v1. It returns the address of v1, and its pod.
func (w *world) shop() (v1 netip.AddrPort, pod uint64) {
	w.t.Helper()
	requests := func(s *v1alpha1.WangellServiceSpec) { s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest} }
	w.apply("v1", requests)
	w.apply("v2", requests)
	w.apply("shop", func(s *v1alpha1.WangellServiceSpec) {
		s.Image, s.TargetPort = "", 0
		s.Traffic = []v1alpha1.Revision{{Revision: "v1", Percent: 90}, {Revision: "v2", Percent: 10}}
	})
	w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
	v1 = w.vip("v1")
	w.until("both revisions are kept", func() bool { return w.isKept("v1") && w.isKept("v2") })
	w.d.syn(v1)
	w.until("a pod of v1 serves", func() bool { return w.d.serving(v1) == 1 })
	return v1, w.d.servingIDs(v1)[0]
}

// isKept reports whether a service keeps its objects when it is deleted.
func (w *world) isKept(name string) bool {
	return slices.Contains(w.service(name).Finalizers, v1alpha1.FinalizerRevision)
}

func (w *world) delete(name string) {
	w.t.Helper()
	if err := w.client.Delete(w.t.Context(), w.service(name)); err != nil {
		w.t.Fatal(err)
	}
}

// untilLeft waits until daemons lead no requests to v1, which is being deleted, and checks that its pod goes on.
func (w *world) untilLeft(v1 netip.AddrPort) {
	w.t.Helper()
	w.until("daemons lead no requests to v1", func() bool {
		s, known := w.d.has(v1)
		return known && s.Requests.Leaving
	})
	var pods corev1.PodList
	if err := w.client.List(w.t.Context(), &pods, client.InNamespace(w.namespace),
		client.MatchingLabels{v1alpha1.LabelService: "v1"}); err != nil {
		w.t.Fatal(err)
	}
	if len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp != nil || w.replicas("v1") != 1 {
		w.t.Errorf("pods %+v, replicas %d: its pod does not go on", pods.Items, w.replicas("v1"))
	}
	if !w.isKept("v1") {
		w.t.Error("the garbage collector ends the pods")
	}
}

// Its objects, which the garbage collector deletes, stay until its pods have answered the requests that they have.
func TestDeletedRevisionStaysUntilItsPodsHaveAnswered(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Requests = true })
	w.run()
	v1, pod := w.shop()
	if w.isKept("shop") {
		t.Error("the service with traffic is kept, which has no pods")
	}
	w.d.opens(1)
	w.delete("v1")
	w.untilLeft(v1)
	w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionFalse, "RevisionMissing")
	w.d.ends(v1, pod)
	w.until("v1 is gone", func() bool { return !w.get("v1", new(v1alpha1.WangellService)) })
	w.until("daemons have removed it", func() bool { _, ok := w.d.has(v1); return !ok })
	if n := w.replicas("v1"); n != 0 {
		t.Errorf("its Deployment has %d replicas", n)
	}

	// A service to which no other routes requests is not kept.
	w.delete("shop")
	w.until("v2 is not kept", func() bool { return !w.isKept("v2") })
	w.delete("v2")
	w.until("v2 is gone", func() bool { return !w.get("v2", new(v1alpha1.WangellService)) })
}

// leaveV1 has all requests go to v2, and waits until daemons know.
func (w *world) leaveV1() {
	w.t.Helper()
	w.change("shop", func(s *v1alpha1.WangellServiceSpec) {
		s.Traffic = []v1alpha1.Revision{{Revision: "v2", Percent: 100}}
	})
	shop := w.vip("shop")
	w.until("daemons know that v2 gets all requests", func() bool {
		s, _ := w.d.has(shop)
		_, revisions := s.Requests.Traffic.Revisions()
		return len(revisions) == 1
	})
}

// It may still have requests of the service whose traffic has left it.
func TestRevisionDeletedAfterItLostItsTrafficStaysUntilItsPodsHaveAnswered(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Requests = true })
	w.run()
	v1, pod := w.shop()
	w.d.opens(1)
	w.leaveV1()
	w.delete("v1")
	w.untilLeft(v1)
	w.d.ends(v1, pod)
	w.until("v1 is gone", func() bool { return !w.get("v1", new(v1alpha1.WangellService)) })
}

func TestRevisionWithoutTrafficIsNotKept(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Requests = true })
	w.run()
	v1, _ := w.shop()
	w.change("v1", func(s *v1alpha1.WangellServiceSpec) { s.DrainTimeout = new(int64(1)) })
	w.leaveV1()
	w.until("v1 is not kept", func() bool { return !w.isKept("v1") })
	if !w.isKept("v2") {
		t.Error("v2 is not kept")
	}
	w.change("v2", func(s *v1alpha1.WangellServiceSpec) { s.Balancing = nil })
	w.until("v2, which cannot be a revision, is not kept", func() bool { return !w.isKept("v2") })
	if w.d.serving(v1) != 1 {
		t.Error("v1 does not go on")
	}
}

// A revision that is deleted while no controller leads is removed by the next leader, which finds its pods first.
func TestNewLeaderRemovesADeletedRevision(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Requests = true })
	stop := w.run()
	v1, _ := w.shop()
	stop()
	w.d.opens(1)
	w.delete("v1")
	if !w.get("v1", new(v1alpha1.WangellService)) || !w.get("v1", new(appsv1.Deployment)) {
		t.Fatal("it is gone without a controller")
	}
	w.run()
	w.untilLeft(v1)
	w.until("its pod is drained", func() bool { return len(w.d.idsOf(v1, wire.PodDraining)) == 1 })
	w.d.ends(v1, w.d.idsOf(v1, wire.PodDraining)[0])
	w.until("v1 is gone", func() bool { return !w.get("v1", new(v1alpha1.WangellService)) })
}

func TestWhatBecomesOfADeletedRevision(t *testing.T) {
	for name, c := range map[string]struct {
		l    leaving
		want departure
	}{
		"served":                    {leaving{routed: true, put: true, known: true, left: time.Second}, departureTell},
		"nobody's any more":         {leaving{put: true, known: true, left: time.Second}, departureEnd},
		"of a new leader":           {leaving{routed: true, left: time.Second}, departurePut},
		"of one that has not begun": {leaving{routed: true, put: true, left: time.Second}, departureWait},
		"with unreported pods": {leaving{routed: true, put: true, known: true, unreported: true, left: time.Second},
			departureWait},
		"being removed": {leaving{routed: true, put: true, known: true, told: true, left: time.Second}, departureWait},
		"nobody's since it is being removed": {leaving{put: true, known: true, told: true, left: time.Second},
			departureWait},
		"removed":  {leaving{routed: true, put: true, told: true, left: time.Second}, departureEnd},
		"too late": {leaving{routed: true, put: true, known: true, told: true}, departureEnd},
	} {
		if got := c.l.next(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
