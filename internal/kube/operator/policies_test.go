// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/wire"
)

// rules returns the rules for sources that the daemon has of a service: "all" if there are none, "unknown" if it does
// not have the service.
func (w *world) rules(name string) string {
	w.t.Helper()
	a, err := netip.ParseAddr(w.service(name).Status.LoadBalancerIP)
	if err != nil {
		return "unknown"
	}
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	s, ok := w.d.table[netip.AddrPortFrom(a, 80)]
	if !ok {
		return "unknown"
	}
	if s.Flags&wire.FlagSources == 0 {
		return "all"
	}
	text, _ := s.Sources.MarshalText()
	return string(text)
}

func (w *world) untilRules(name, want string) {
	w.t.Helper()
	last := ""
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the rules of %s: %q", name, last)
		}
	}()
	w.until("the rules of "+name+" are "+want, func() bool { last = w.rules(name); return last == want })
}

// policy creates a NetworkPolicy for all pods, with peers that may connect to a port.
func (w *world) policy(name string, port intstr.IntOrString, from ...networkingv1.NetworkPolicyPeer) {
	w.t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	if len(from) > 0 {
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
			From: from, Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
		}}
	}
	w.create(p)
}

// clientPod creates a pod that runs at an address.
func (w *world) clientPod(name, ip string, labels map[string]string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "registry.example/client:1"}}},
	}
	w.create(p)
	p.Status.Phase, p.Status.PodIP = corev1.PodRunning, ip
	p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	if err := w.client.Status().Update(context.Background(), p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) update(o client.Object) {
	w.t.Helper()
	if err := w.client.Update(context.Background(), o); err != nil {
		w.t.Fatal(err)
	}
}

// Policies, and the pods and namespaces that they select, decide what daemons let through. A new leader puts nothing
// else in force, not even for a moment.
func TestNetworkPoliciesReachTheDaemons(t *testing.T) {
	w := newWorld(t, nil)
	stop := w.run()
	port := intstr.FromInt32(8080)
	w.apply("app")
	w.untilRules("app", "all")
	w.condition("app", v1alpha1.ConditionRestricted, metav1.ConditionFalse, "Open")

	w.policy("deny", port)
	w.untilRules("app", "")
	w.condition("app", v1alpha1.ConditionRestricted, metav1.ConditionTrue, "NetworkPolicy")
	w.policy("office", port, networkingv1.NetworkPolicyPeer{
		IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.0/24", Except: []string{"192.0.2.128/25"}},
	})
	w.untilRules("app", "+192.0.2.0/25")
	w.policy("another-port", intstr.FromInt32(9090), networkingv1.NetworkPolicyPeer{
		IPBlock: &networkingv1.IPBlock{CIDR: "198.51.100.0/24"},
	})

	pod := w.clientPod("client", "10.244.1.5", map[string]string{"role": "client"})
	w.policy("clients", port, networkingv1.NetworkPolicyPeer{
		PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "client"}},
	})
	w.untilRules("app", "+10.244.1.5/32 +192.0.2.0/25")
	pod.Labels["role"] = "other"
	w.update(pod)
	w.untilRules("app", "+192.0.2.0/25")
	w.policy("team", port, networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team-of": w.namespace}},
	})
	ns := &corev1.Namespace{}
	if err := w.client.Get(context.Background(), client.ObjectKey{Name: w.namespace}, ns); err != nil {
		t.Fatal(err)
	}
	ns.Labels["team-of"] = w.namespace
	w.update(ns)
	w.untilRules("app", "+10.244.1.5/32 +192.0.2.0/25")

	w.change("app", func(s *v1alpha1.WangellServiceSpec) { s.AllowFrom = []string{"10.0.0.0/8"} })
	w.untilRules("app", "+10.244.1.5/32")

	stop()
	if err := w.client.Delete(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	w.apply("late")
	w.run()
	w.untilRules("app", "")
	w.untilRules("late", "+192.0.2.0/25")
	if err := w.client.DeleteAllOf(context.Background(), &networkingv1.NetworkPolicy{},
		client.InNamespace(w.namespace)); err != nil {
		t.Fatal(err)
	}
	w.untilRules("late", "all")
	w.untilRules("app", "+10.0.0.0/8")
	w.condition("app", v1alpha1.ConditionRestricted, metav1.ConditionTrue, "AllowFrom")
}
