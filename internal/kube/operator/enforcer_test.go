// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/decide/sources"
)

// putter is a controller that records what is put.
type putter struct{ put chan controller.Service }

func (p putter) Put(s controller.Service) error { p.put <- s; return nil }

func (putter) Restrict(v1alpha1.Key, *sources.Set, ...sources.Set) error { return nil }

// slowEnforcer returns an enforcer with a policy that lets in the pods labelled "client", in a cluster whose API server
// does not answer a list of pods before answer is closed.
func slowEnforcer(ctx context.Context, t *testing.T, answer chan struct{}) (*enforcer, putter) {
	t.Helper()
	friends := metav1.LabelSelector{MatchLabels: map[string]string{"role": "client"}}
	client := fake.NewClientset(
		&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "friends"},
			Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
				{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &friends}}},
			}},
		},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "friend", Labels: friends.MatchLabels},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.1.2"}}},
		},
	)
	client.PrependReactor("list", "pods", func(kubetesting.Action) (bool, kruntime.Object, error) {
		select {
		case <-answer:
		case <-ctx.Done():
		}
		return false, nil, nil
	})
	e, err := newEnforcer(ctx, client, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := putter{make(chan controller.Service, 2)}
	e.controller, e.judged = p, func(...v1alpha1.Key) {}
	return e, p
}

func shopService(namespace string) controller.Service {
	return controller.Service{Spec: &v1alpha1.WangellService{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec:       v1alpha1.WangellServiceSpec{Image: "web:1", TargetPort: 8080},
	}}
}

// A new leader does not put policies in force before it knows the pods that they select. Other services do not wait.
func TestServicesWaitForThePodsThatTheirPoliciesSelect(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan struct{})
	e, p := slowEnforcer(ctx, t, answer)
	ran := make(chan struct{})
	go func() { defer close(ran); e.run() }()
	defer func() { cancel(); <-ran }()
	done := make(chan error, 1)
	go func() { done <- e.put("shop/web", shopService("shop")) }()
	if err := e.put("other/web", shopService("other")); err != nil {
		t.Fatal(err)
	}
	if s := <-p.put; s.Spec.Namespace != "other" || s.Policy != nil {
		t.Fatalf("put first: %s, restricted %v, want the service without policies", s.Spec.Namespace, s.Policy != nil)
	}
	close(answer)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s := <-p.put
	if s.Policy == nil || !s.Policy.Contains(netip.MustParseAddr("10.244.1.2")) {
		t.Errorf("the pod that the policy selects is not let in: %+v", s.Policy)
	}
}

// A leader that ends while it waits puts nothing in force.
func TestEndingLeaderPutsNoGuessInForce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e, p := slowEnforcer(ctx, t, make(chan struct{}))
	done := make(chan error, 1)
	go func() { done <- e.put("shop/web", shopService("shop")) }()
	cancel()
	e.run()
	if err := <-done; err == nil {
		t.Errorf("put without the pods that the policy selects: %+v", (<-p.put).Policy)
	}
}
