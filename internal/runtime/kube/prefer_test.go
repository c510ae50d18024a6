// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// The pod of a wake prefers the nodes that have its images, beside what its template asks for, which stays as it is.
func TestPodsPreferNodesThatHaveTheirImages(t *testing.T) {
	r := &Runtime{hostnames: map[string]string{"n1": "host-1"}}
	const key = v1alpha1.Key("default/a")
	mine := corev1.PreferredSchedulingTerm{Weight: 7, Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpExists}},
	}}
	required := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{mine},
		RequiredDuringSchedulingIgnoredDuringExecution:  required,
	}}}}
	before := pod.DeepCopy()
	if got := r.preferring(key, pod); got != pod {
		t.Error("a pod is changed although no node is preferred")
	}
	r.PreferNodes(key, []string{"n1", "n2"})
	got := r.preferring(key, pod).Spec.Affinity.NodeAffinity
	if !reflect.DeepEqual(pod, before) {
		t.Error("the template's pod was changed")
	}
	if !reflect.DeepEqual(got.RequiredDuringSchedulingIgnoredDuringExecution, required) ||
		len(got.PreferredDuringSchedulingIgnoredDuringExecution) != 2 ||
		!reflect.DeepEqual(got.PreferredDuringSchedulingIgnoredDuringExecution[0], mine) {
		t.Fatalf("the template's affinity became %+v", got)
	}
	e := got.PreferredDuringSchedulingIgnoredDuringExecution[1].Preference.MatchExpressions
	if len(e) != 1 || e[0].Key != "kubernetes.io/hostname" || e[0].Operator != corev1.NodeSelectorOpIn ||
		!reflect.DeepEqual(e[0].Values, []string{"host-1", "n2"}) {
		t.Errorf("prefers %+v", e)
	}
	bound := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n3"}}
	if got := r.preferring(key, bound); got.Spec.Affinity != nil {
		t.Error("a pod that is bound to a node gets an affinity")
	}
	r.PreferNodes(key, nil)
	if got := r.preferring(key, pod); got != pod || len(r.preferred) != 0 {
		t.Error("nodes are preferred after they were taken back")
	}
}
