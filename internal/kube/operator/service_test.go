// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/wire"
)

// edit patches the Service of that name as another program would.
func (w *world) edit(name, manager string, patch any) {
	w.t.Helper()
	text, err := json.Marshal(patch)
	if err != nil {
		w.t.Fatal(err)
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	if err := w.client.Patch(w.t.Context(), svc, client.RawPatch(types.MergePatchType, text),
		client.FieldOwner(manager)); err != nil {
		w.t.Fatal(err)
	}
}

// serviceObject waits until the Service of that name is as wanted, and returns it.
func (w *world) serviceObject(name, what string, holds func(*corev1.Service) bool) *corev1.Service {
	w.t.Helper()
	svc := new(corev1.Service)
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the Service is %+v", svc)
		}
	}()
	w.until(what, func() bool { svc = new(corev1.Service); return w.get(name, svc) && holds(svc) })
	return svc
}

// What others write into the Service outlives each change of it: annotations, labels, class, type and port.
func TestServiceKeepsWhatOthersWrite(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("shop", func(s *v1alpha1.WangellServiceSpec) {
		s.AppProtocol = "kubernetes.io/h2c"
		s.Service = &v1alpha1.ServiceObject{
			Annotations: map[string]string{"example.com/a": "1", "example.com/b": "2"},
			Labels:      map[string]string{"example.com/team": "red"},
		}
	})
	first := w.serviceObject("shop", "it has annotations, labels and the protocol", func(svc *corev1.Service) bool {
		p := svc.Spec.Ports[0].AppProtocol
		return svc.Annotations["example.com/a"] == "1" && svc.Annotations["example.com/b"] == "2" &&
			svc.Labels["example.com/team"] == "red" && p != nil && *p == "kubernetes.io/h2c"
	})
	w.vip("shop")
	var slice discoveryv1.EndpointSlice
	w.get("shop", &slice)
	if p := slice.Ports[0].AppProtocol; p == nil || *p != "kubernetes.io/h2c" {
		t.Errorf("the EndpointSlice has the protocol %v", p)
	}
	w.edit("shop", "theirs", map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"theirs": "kept", "example.com/a": "theirs"},
			"labels": map[string]any{"theirs": "kept"}},
		"spec": map[string]any{"externalIPs": []string{"192.0.2.7"}, "selector": map[string]any{"app": "theirs"}},
	})
	kept := func(svc *corev1.Service) bool {
		return svc.Annotations["theirs"] == "kept" && svc.Labels["theirs"] == "kept" &&
			len(svc.Spec.ExternalIPs) == 1 && svc.UID == first.UID && svc.Spec.ClusterIP == first.Spec.ClusterIP
	}
	step := func(what string, change func(*v1alpha1.WangellServiceSpec), holds func(*corev1.Service) bool) {
		t.Helper()
		if change != nil {
			w.change("shop", change)
		}
		if svc := w.serviceObject("shop", what, holds); !kept(svc) || len(svc.Spec.Ports) != 1 {
			t.Fatalf("%s: the Service lost what others wrote, or is another: %+v", what, svc)
		}
	}
	step("its own value is back, and no selector", nil, func(svc *corev1.Service) bool {
		return svc.Annotations["example.com/a"] == "1" && len(svc.Spec.Selector) == 0
	})
	step("an annotation that the manifest has no more is gone", func(s *v1alpha1.WangellServiceSpec) {
		s.Service.Annotations = map[string]string{"example.com/b": "3"}
		s.AppProtocol = ""
	}, func(svc *corev1.Service) bool {
		_, has := svc.Annotations["example.com/a"]
		return !has && svc.Annotations["example.com/b"] == "3" && svc.Spec.Ports[0].AppProtocol == nil
	})
	step("it has another class, and no address of Wangell's", func(s *v1alpha1.WangellServiceSpec) {
		s.Service.LoadBalancerClass = "example.com/lb"
	}, func(svc *corev1.Service) bool {
		class := svc.Spec.LoadBalancerClass
		return class != nil && *class == "example.com/lb" && len(svc.Status.LoadBalancer.Ingress) == 0
	})
	w.condition("shop", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "Pending")
	// kubectl edit owns the node port, so the port is not Wangell's alone.
	w.edit("shop", "kubectl-edit", map[string]any{"spec": map[string]any{"ports": []any{map[string]any{
		"name": "tcp", "protocol": "TCP", "port": 80, "targetPort": 80, "nodePort": 30123}}}})
	step("it has another port, at the same node port", func(s *v1alpha1.WangellServiceSpec) { s.Port = 81 },
		func(svc *corev1.Service) bool {
			return svc.Spec.Ports[0].Port == 81 && svc.Spec.Ports[0].NodePort == 30123
		})
	step("it is no load balancer", func(s *v1alpha1.WangellServiceSpec) {
		s.Service = &v1alpha1.ServiceObject{Type: corev1.ServiceTypeClusterIP}
	}, func(svc *corev1.Service) bool {
		_, has := svc.Annotations["example.com/b"]
		return svc.Spec.Type == corev1.ServiceTypeClusterIP && !has && svc.Labels["example.com/team"] == "" &&
			svc.Spec.LoadBalancerClass == nil && svc.Spec.Ports[0].NodePort == 0
	})
	if m := w.condition("shop", v1alpha1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned"); !contains(m,
		"spec.service.type is ClusterIP") {
		t.Errorf("got %q", m)
	}
	a := w.vip("shop")
	if s, ok := w.d.has(a); !ok || s.Flags&wire.FlagAnnounce != 0 {
		t.Errorf("daemons know it as %+v", s)
	}
	step("it is Wangell's load balancer again", func(s *v1alpha1.WangellServiceSpec) { s.Service = nil },
		func(svc *corev1.Service) bool {
			return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && addressOf(svc) == a.Addr() &&
				*svc.Spec.LoadBalancerClass == v1alpha1.LoadBalancerClass
		})
}

// Another load balancer is given the Service once the former one has removed what it had made for it.
func TestServiceWaitsForTheFormerLoadBalancer(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("cloud", func(s *v1alpha1.WangellServiceSpec) { s.LoadBalancerClass = "example.com/lb" })
	w.condition("cloud", v1alpha1.ConditionAddressAssigned, metav1.ConditionFalse, "Pending")
	w.edit("cloud", "lb", map[string]any{"metadata": map[string]any{"finalizers": []string{cleanupFinalizer}}})
	w.change("cloud", func(s *v1alpha1.WangellServiceSpec) { s.LoadBalancerClass = "" })
	w.condition("cloud", v1alpha1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned")
	svc := w.serviceObject("cloud", "it is no load balancer", func(svc *corev1.Service) bool {
		return svc.Spec.Type == corev1.ServiceTypeClusterIP
	})
	if len(svc.Finalizers) != 1 {
		t.Errorf("finalizers %v", svc.Finalizers)
	}
	w.edit("cloud", "lb", map[string]any{"metadata": map[string]any{"finalizers": nil}})
	w.serviceObject("cloud", "it has Wangell's class and address", func(svc *corev1.Service) bool {
		return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && addressOf(svc).IsValid() &&
			*svc.Spec.LoadBalancerClass == v1alpha1.LoadBalancerClass
	})
}

// A Service that an earlier release wrote loses what the manifest does not want any more.
func TestServiceOfAnEarlierReleaseIsApplied(t *testing.T) {
	w := newWorld(t, nil)
	stop := w.run()
	w.apply("old", func(s *v1alpha1.WangellServiceSpec) {
		s.LoadBalancerClass, s.Address = "example.com/lb", "192.0.2.9"
	})
	svc := w.serviceObject("old", "it exists", func(*corev1.Service) bool { return true })
	stop()
	svc.Annotations["example.com/old"] = "1" // by an Update of the operator's manager
	if err := w.client.Update(t.Context(), svc, client.FieldOwner(fieldManager)); err != nil {
		t.Fatal(err)
	}
	w.change("old", func(s *v1alpha1.WangellServiceSpec) { s.Address = "" })
	w.run()
	w.serviceObject("old", "it asks for no address", func(svc *corev1.Service) bool {
		_, has := svc.Annotations["example.com/old"]
		return svc.Spec.LoadBalancerIP == "" && !has
	})
}

// A quota without load balancers is a condition that says what to write, which then works.
func TestNamespaceWithoutLoadBalancers(t *testing.T) {
	w := newWorld(t, nil)
	w.create(&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "none"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"services.loadbalancers": resource.MustParse("0"),
			"services.nodeports": resource.MustParse("0")}}})
	// The controller of quotas is not part of this API server.
	q := &corev1.ResourceQuota{}
	w.get("none", q)
	q.Status.Hard, q.Status.Used = q.Spec.Hard, corev1.ResourceList{"services.loadbalancers": resource.MustParse("0"),
		"services.nodeports": resource.MustParse("0")}
	if err := w.client.Status().Update(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.apply("shop")
	m := w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionFalse, "Refused")
	if !contains(m, "exceeded quota: none") || !contains(m, "write spec.service: {type: ClusterIP}") {
		t.Errorf("got %q", m)
	}
	w.change("shop", func(s *v1alpha1.WangellServiceSpec) {
		s.Service = &v1alpha1.ServiceObject{Type: corev1.ServiceTypeClusterIP}
	})
	w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
	a := w.vip("shop")
	w.d.syn(a)
	w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionTrue, "Serving")
}

// external-dns takes the name from the annotation external-dns.alpha.kubernetes.io/hostname of a Service of type
// LoadBalancer, and its targets from spec.externalIPs or, if there are none, from status.loadBalancer.ingress.
func TestServiceHasWhatExternalDNSReads(t *testing.T) {
	const hostname = "external-dns.alpha.kubernetes.io/hostname"
	w := newWorld(t, nil)
	w.run()
	w.apply("shop", func(s *v1alpha1.WangellServiceSpec) {
		s.Service = &v1alpha1.ServiceObject{Annotations: map[string]string{hostname: "shop.example.com"}}
	})
	a := w.vip("shop")
	w.serviceObject("shop", "external-dns finds name and target", func(svc *corev1.Service) bool {
		in := svc.Status.LoadBalancer.Ingress
		return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && len(svc.Spec.ExternalIPs) == 0 && len(in) == 1 &&
			in[0].IP == a.Addr().String() && in[0].Hostname == "" && svc.Annotations[hostname] == "shop.example.com"
	})
}

// A Service may have two stacks, and return to one.
func TestServiceHasTheWantedIPFamilies(t *testing.T) {
	w := newWorld(t, nil)
	w.run()
	w.apply("shop")
	policy := func(p corev1.IPFamilyPolicy, families int) {
		t.Helper()
		w.change("shop", func(s *v1alpha1.WangellServiceSpec) {
			s.Service = &v1alpha1.ServiceObject{IPFamilyPolicy: p, Labels: map[string]string{"policy": string(p)}}
		})
		w.serviceObject("shop", string(p), func(svc *corev1.Service) bool {
			return *svc.Spec.IPFamilyPolicy == p && svc.Spec.IPFamilies[0] == corev1.IPv4Protocol &&
				len(svc.Spec.IPFamilies) == families && svc.Labels["policy"] == string(p)
		})
		w.condition("shop", v1alpha1.ConditionReady, metav1.ConditionTrue, "CanWake")
	}
	policy(corev1.IPFamilyPolicyRequireDualStack, 2)
	policy(corev1.IPFamilyPolicyPreferDualStack, 2)
	policy(corev1.IPFamilyPolicySingleStack, 1)
}
