// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/rollout"
	"wangell.loutres.me/internal/kube/clusterapi"
	"wangell.loutres.me/internal/wire"
)

func TestTrafficGoesToOtherServices(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Requests = true })
	w.run()
	requests := func(s *v1alpha1.WangellServiceSpec) { s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest} }
	w.apply("shop", requests)
	w.apply("v1", requests)
	shop := w.vip("shop")
	w.until("its Deployment is there", func() bool { return w.get("shop", &appsv1.Deployment{}) })

	// It keeps its address, and loses its Deployment.
	w.change("shop", func(s *v1alpha1.WangellServiceSpec) {
		s.Image, s.TargetPort, s.Balancing = "", 0, nil
		s.Traffic = []v1alpha1.Revision{{Revision: "v1", Percent: 90}, {Revision: "v2", Percent: 10, Tag: "canary"}}
	})
	missing := func() {
		t.Helper()
		const want = "spec.traffic[1].revision: there is no WangellService v2"
		if m := w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionFalse, "RevisionMissing"); !contains(m, want) {
			t.Errorf("a revision that is not there: %s", m)
		}
	}
	missing()
	w.until("its Deployment is gone", func() bool { return !w.get("shop", &appsv1.Deployment{}) })
	w.apply("v2")
	w.until("a revision that balances connections is reported", func() bool {
		return contains(w.service("shop").Status.Message, "v2 cannot be a revision: it balances connections")
	})
	w.change("v2", requests)
	w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
	if at := w.vip("shop"); at != shop {
		t.Errorf("its address was %v, and is %v", shop, at)
	}
	percentages := func() (list []uint8) {
		s, _ := w.d.has(shop)
		_, revisions := s.Requests.Traffic.Revisions()
		for _, r := range revisions {
			if strings.HasPrefix(r.Service, w.namespace+"/v") {
				list = append(list, r.Percent)
			}
		}
		return list
	}
	w.until("daemons know the percentages", func() bool { return string(percentages()) == "\x5a\x0a" })

	// As kubectl wangell rollout promote does.
	from, to, err := clusterapi.MoveTraffic(t.Context(), w.config, w.namespace, "shop",
		func(r []v1alpha1.Revision) ([]v1alpha1.Revision, error) {
			at, err := rollout.Candidate(r, "")
			return rollout.Promote(r, at, 100), err
		})
	if err != nil || from[0].Percent != 90 || to[1].Percent != 100 || to[1].Tag != "canary" {
		t.Fatalf("promote: %+v to %+v, %v", from, to, err)
	}
	w.until("daemons know the other percentages", func() bool { return string(percentages()) == "\x00\x64" })
	if _, _, err := clusterapi.MoveTraffic(t.Context(), w.config, w.namespace, "shop",
		func([]v1alpha1.Revision) ([]v1alpha1.Revision, error) {
			return []v1alpha1.Revision{{Revision: "v1", Percent: 99}}, nil
		}); err == nil || !contains(err.Error(), "the percentages of traffic must add up to 100") {
		t.Errorf("99 percent: %v", err)
	}

	if err := w.client.Delete(t.Context(), w.service("v2")); err != nil {
		t.Fatal(err)
	}
	missing()
	if s, known := w.d.has(shop); !known || s.Flags&wire.FlagRequests == 0 {
		t.Errorf("the service is not served any more: %+v", s)
	}
}

// A tenant who may not change the policy of a revision does not get around it by a service of their own with traffic.
func TestTrafficTakesOverThePoliciesOfRevisions(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Requests = true })
	w.run()
	w.apply("v1", func(s *v1alpha1.WangellServiceSpec) {
		s.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
		s.AllowFrom = []string{"10.0.0.0/8", "192.0.2.0/24"}
	})
	w.apply("around", func(s *v1alpha1.WangellServiceSpec) {
		s.Image, s.TargetPort, s.Traffic = "", 0, []v1alpha1.Revision{{Revision: "v1", Percent: 100}}
	})
	w.untilRules("around", "+10.0.0.0/8 +192.0.2.0/24")
	const byList = "spec.allowFrom of revision v1"
	if m := w.condition("around", v1alpha1.ConditionRestricted, metav1.ConditionTrue, "AllowFrom"); !contains(m, byList) {
		t.Errorf("message %q", m)
	}
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "only-v1"}}
	p.Spec.PodSelector.MatchLabels = map[string]string{v1alpha1.LabelService: "v1"}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.128/25"}}}}}
	w.create(p)
	w.untilRules("around", "+192.0.2.128/25")
	const both = byList + " and NetworkPolicies only-v1 of revision v1"
	m := w.condition("around", v1alpha1.ConditionRestricted, metav1.ConditionTrue, "NetworkPolicy")
	if !contains(m, both) {
		t.Errorf("message %q", m)
	}
	if err := w.client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	w.change("v1", func(s *v1alpha1.WangellServiceSpec) { s.AllowFrom = nil })
	w.untilRules("around", "all")
	w.condition("around", v1alpha1.ConditionRestricted, metav1.ConditionFalse, "Open")
}
