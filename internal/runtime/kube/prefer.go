// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

const (
	// preferredNodes bounds the names in a pod's affinity.
	preferredNodes = 32
	// preference is the weight of nodes that have the images, 1 to 100. The scheduler scales weights, so it matters only
	// beside preferences of a template.
	preference = 50
)

// DescribeNode implements runtime.Cluster.
func (r *Runtime) DescribeNode(ctx context.Context, name string) (map[string]string, []corev1.Taint, error) {
	n, err := r.getNode(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hostnames == nil {
		r.hostnames = map[string]string{}
	}
	r.hostnames[name] = cmp.Or(n.Labels[corev1.LabelHostname], name)
	return n.Labels, n.Spec.Taints, nil
}

// NodeAddrs implements runtime.Cluster: those from which kubelet chooses the host IP of its pods, by which a daemon
// knows its node. They are the Node's internal addresses, or the external ones if there is none.
func (r *Runtime) NodeAddrs(ctx context.Context, name string) ([]netip.Addr, error) {
	n, err := r.getNode(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		var addrs []netip.Addr
		for _, a := range n.Status.Addresses {
			if ip := parseIPv4(a.Address); a.Type == kind && ip.IsValid() {
				addrs = append(addrs, ip)
			}
		}
		if len(addrs) > 0 {
			return addrs, nil
		}
	}
	return nil, fmt.Errorf("node %s has no IPv4 address in its status", name)
}

// getNode reads a Node. The error is runtime.ErrNotFound if there is none.
func (r *Runtime) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	n, err := r.cfg.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("node %s: %w", name, runtime.ErrNotFound)
	}
	return n, err
}

// PreferNodes implements runtime.Cluster.
func (r *Runtime) PreferNodes(k v1alpha1.Key, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(names) == 0 {
		delete(r.preferred, k)
		return
	}
	if r.preferred == nil {
		r.preferred = map[v1alpha1.Key][]string{}
	}
	r.preferred[k] = slices.Clone(names)
}

// preferring returns a pod of a service that prefers the nodes that have its images. The preference is only in the
// pod and not in the template, where it would be a change that replaces pods. The lock is held.
func (r *Runtime) preferring(k v1alpha1.Key, pod *corev1.Pod) *corev1.Pod {
	names := r.preferred[k]
	if len(names) == 0 || pod.Spec.NodeName != "" {
		return pod
	}
	hosts := make([]string, 0, preferredNodes)
	for _, name := range names[:min(len(names), preferredNodes)] {
		hosts = append(hosts, cmp.Or(r.hostnames[name], name))
	}
	pod = pod.DeepCopy()
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	a := pod.Spec.Affinity.NodeAffinity
	a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
		corev1.PreferredSchedulingTerm{Weight: preference, Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts},
			},
		}})
	return pod
}
