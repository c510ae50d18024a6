// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
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
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	n, err := r.cfg.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
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
