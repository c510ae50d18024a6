// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"hash/fnv"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// directHash returns the pod-template-hash label of the pods that are created for a Deployment at rest. It derives from
// the Deployment's UID and generation: two controllers that create pods in the same rest, as when the lead changes,
// create pods of one ReplicaSet, and the pods of the next rest belong to another.
func directHash(d *appsv1.Deployment) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", d.UID, d.Generation)
	return rand.SafeEncodeString(fmt.Sprint(h.Sum32()))
}

// directPod returns the pod that a ReplicaSet would create from the Deployment's template.
func directPod(d *appsv1.Deployment, hash string) *corev1.Pod {
	t := d.Spec.Template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, GenerateName: d.Name + "-" + hash + "-",
			Annotations: t.Annotations, Finalizers: t.Finalizers,
			Labels: with(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey, hash),
			// The Deployment owns the pod, so that the pod is deleted with it, but is not its controller: no ReplicaSet
			// would adopt a pod that has one.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID}},
		},
		Spec: t.Spec,
	}
}

// directName returns the name of direct pod k, counted from 0, of those that are like pod. All controllers that create
// pods in the same rest of a Deployment use the same names in the same order, so that the API server refuses a pod that
// an earlier request has created, whether it was answered or not. The names look as if a ReplicaSet had made them.
func directName(pod *corev1.Pod, k int) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s%d", pod.GenerateName, k)
	return nameWith(pod.GenerateName, rand.SafeEncodeString(fmt.Sprintf("%010d", h.Sum32()))[10-nameSuffix:])
}

// randomName returns a name such as the API server generates from a prefix.
func randomName(prefix string) string { return nameWith(prefix, rand.String(nameSuffix)) }

// nameSuffix is how many characters follow the prefix of a pod's name.
const nameSuffix = 5

// nameWith returns prefix, shortened if necessary, and suffix: a pod's name is its host name, of at most 63 characters.
func nameWith(prefix, suffix string) string {
	return prefix[:min(len(prefix), 63-len(suffix))] + suffix
}

// adopterOf returns the ReplicaSet that adopts direct pods. The Deployment recognizes it as its own if its template is
// the one that the pods were created from.
func adopterOf(d *appsv1.Deployment, t *corev1.PodTemplateSpec, hash string, replicas int32) *appsv1.ReplicaSet {
	t = t.DeepCopy()
	t.Labels = with(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = with(selector.MatchLabels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: d.Name + "-" + hash, Labels: maps.Clone(t.Labels),
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID, Controller: new(true)},
			},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: *t,
		},
	}
}

// sameButHash reports whether a ReplicaSet's template is the Deployment's, apart from the label pod-template-hash.
func sameButHash(set, of *corev1.PodTemplateSpec) bool {
	set = set.DeepCopy()
	delete(set.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return equality.Semantic.DeepEqual(set, of)
}

// with returns a copy of m with one more key.
func with(m map[string]string, key, value string) map[string]string {
	out := make(map[string]string, len(m)+1)
	maps.Copy(out, m)
	out[key] = value
	return out
}
