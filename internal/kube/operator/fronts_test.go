// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// Nodes with a daemon and without an Envoy are told once they have lacked it for a while.
func TestNodesWithoutEnvoyAreTold(t *testing.T) {
	now := time.Unix(1000, 0)
	nodes := map[string]netip.Addr{"a": {}, "b": {}}
	j := newFrontJudge(now)
	look := func(after time.Duration, reason, message string, with ...string) {
		t.Helper()
		now = now.Add(after)
		if got, want := j.look(nodes, with, now), (fronts{true, reason, message}); got != want {
			t.Errorf("%v with %v: %+v, want %+v", nodes, with, got, want)
		}
	}
	look(0, "", "")
	look(frontsSettle-1, "", "")
	look(1, "NoEnvoy", "no Envoy is ready on 2 of 2 nodes (a, b)")
	look(0, "NodesWithoutEnvoy", "no Envoy is ready on 1 of 2 nodes (b)", "a")
	look(0, "Balanced", "", "a", "b", "elsewhere")
	look(time.Hour, "Balanced", "", "b") // it restarts
	look(frontsSettle, "NodesWithoutEnvoy", "no Envoy is ready on 1 of 2 nodes (a)", "b")
	delete(nodes, "a")
	look(0, "Balanced", "", "b")
	nodes["a"] = netip.Addr{} // a node that comes back is new
	look(0, "Balanced", "", "b")
	nodes["c"], nodes["d"] = netip.Addr{}, netip.Addr{}
	look(0, "Balanced", "")
	look(frontsSettle, "NoEnvoy", "no Envoy is ready on 4 of 4 nodes (a, b, c and others)")
	clear(nodes)
	look(0, "", "")
}

// Services whose requests are balanced say that no Envoy does it; others have no such condition.
func TestServicesSayThatNoEnvoyBalancesTheirRequests(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Requests, c.Fronts = true, Name{c.Namespace, "envoy"} })
	w.run()
	w.apply("web", func(s *v1alpha1.WangellServiceSpec) {
		s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
	})
	w.apply("plain")
	const kind = v1alpha1.ConditionRequestsBalanced
	got := w.condition("web", kind, metav1.ConditionFalse, v1alpha1.ReasonNoEnvoy)
	const want = "no Envoy is ready on 1 of 1 nodes (node-1): connections that come through them are balanced, and not " +
		"requests; kubectl wangell doctor says why"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	node, serves := "node-1", true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "envoy-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "envoy"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.200"}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Serving: &serves}}},
	}
	w.create(slice)
	w.condition("web", kind, metav1.ConditionTrue, v1alpha1.ReasonBalanced)
	if all := w.service("plain").Status.Conditions; apimeta.FindStatusCondition(all, kind) != nil {
		t.Errorf("a service whose connections are balanced: %+v", all)
	}
	w.change("web", func(s *v1alpha1.WangellServiceSpec) { s.Balancing = nil })
	w.until("the condition goes", func() bool {
		return apimeta.FindStatusCondition(w.service("web").Status.Conditions, kind) == nil
	})
}

// A service without pods of its own refuses clients that no Envoy serves.
func TestServicesThatSplitRequestsSayWhatClientsGet(t *testing.T) {
	f := fronts{watched: true, reason: v1alpha1.ReasonNoEnvoy, message: "no Envoy is ready on 1 of 1 nodes (a)"}
	c := balancedCondition(f, true)
	if c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "wait for a minute and are then refused") {
		t.Errorf("%+v", c)
	}
}
