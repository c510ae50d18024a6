// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trimForPolicies drops fields that policies do not use, before an object is cached: a cluster has many pods.
func trimForPolicies(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: trimmed(&o.ObjectMeta), Spec: corev1.PodSpec{HostNetwork: o.Spec.HostNetwork},
			Status: corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs},
		}, nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: trimmed(&o.ObjectMeta)}, nil
	case *networkingv1.NetworkPolicy:
		return &networkingv1.NetworkPolicy{ObjectMeta: trimmed(&o.ObjectMeta), Spec: o.Spec}, nil
	}
	return o, nil
}

func trimmed(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels,
	}
}

// forPolicies returns the part of a trimmed object that decides which clients may connect.
func forPolicies(o any) any {
	switch o := o.(type) {
	case *corev1.Pod:
		return []any{o.Labels, clientAddrs(o)}
	case *corev1.Namespace:
		return o.Labels
	case *networkingv1.NetworkPolicy:
		return o.Spec
	}
	return nil
}

// clientAddrs returns the addresses from which a pod connects: none in the network of its node, which selectors do not
// match, and none once it has ended, as another pod may have them.
func clientAddrs(p *corev1.Pod) (addrs []netip.Addr) {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
