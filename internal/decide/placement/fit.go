// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
)

// Fits reports whether a pod could run on a node, judged by the node's labels and taints. pod may be nil.
func Fits(pod *corev1.PodSpec, n *Node) bool {
	if !n.Known {
		return true
	}
	if pod == nil {
		pod = &corev1.PodSpec{}
	}
	return (pod.NodeName == "" || pod.NodeName == n.Name) && tolerated(pod.Tolerations, n.Taints) &&
		labels.SelectorFromSet(pod.NodeSelector).Matches(labels.Set(n.Labels)) && affine(pod.Affinity, n)
}

// tolerated reports whether no taint keeps a pod with these tolerations away.
func tolerated(tolerations []corev1.Toleration, taints []corev1.Taint) bool {
	for i := range taints {
		t := &taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(tolerations, func(o corev1.Toleration) bool {
			return o.ToleratesTaint(klog.Background(), t, false)
		}) {
			return false
		}
	}
	return true
}

// affine reports whether a node fulfils a required node affinity: one of its terms must hold.
func affine(a *corev1.Affinity, n *Node) bool {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	terms := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return len(t.MatchExpressions)+len(t.MatchFields) > 0 && all(t.MatchExpressions, n.Labels) &&
			all(t.MatchFields, map[string]string{"metadata.name": n.Name})
	})
}

// operators maps operators of node selectors to those of label selectors.
var operators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// all reports whether labels fulfil all requirements. An invalid requirement is never fulfilled.
func all(requirements []corev1.NodeSelectorRequirement, set labels.Set) bool {
	for _, r := range requirements {
		q, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil || !q.Matches(set) {
			return false
		}
	}
	return true
}

// Node is a node with a daemon.
type Node struct {
	Name string
	// Labels and Taints are those of the Kubernetes Node; Known is false if they could not be read: then the node counts
	// as one where every pod could run.
	Known  bool
	Labels map[string]string
	Taints []corev1.Taint
}
