// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"wangell.loutres.me/api/v1alpha1"
)

// newFactory returns the informers of objects with the label of services. Each object is trimmed before it is cached.
func newFactory(cfg Config) informers.SharedInformerFactory {
	labelled := informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.LabelService })
	return informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0,
		informers.WithNamespace(cfg.Namespace), labelled, informers.WithTransform(trim))
}

// trim drops the unused fields of an object.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		trimPod(o)
	case *appsv1.Deployment:
		trimDeployment(o)
	case *appsv1.ReplicaSet:
		trimSet(o)
	}
	return o, nil
}

func trimPod(p *corev1.Pod) {
	p.ManagedFields = nil
	p.OwnerReferences = slices.DeleteFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Controller == nil || !*o.Controller
	})
	p.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, TerminationGracePeriodSeconds: p.Spec.TerminationGracePeriodSeconds,
		Containers: trimContainers(p.Spec.Containers), InitContainers: trimContainers(p.Spec.InitContainers),
		Resources: p.Spec.Resources,
	}
}

// trimContainers keeps the fields of containers for messages, their preStop hooks and stop signals, and their
// requests.
func trimContainers(in []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(in))
	for i, c := range in {
		out[i] = corev1.Container{
			Name: c.Name, Image: c.Image, RestartPolicy: c.RestartPolicy, ResizePolicy: c.ResizePolicy,
			Resources: corev1.ResourceRequirements{Requests: c.Resources.Requests},
		}
		if l := c.Lifecycle; l != nil {
			out[i].Lifecycle = &corev1.Lifecycle{PreStop: l.PreStop}
		}
	}
	return out
}

func trimDeployment(d *appsv1.Deployment) {
	d.ManagedFields, d.OwnerReferences, d.Annotations = nil, nil, nil
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Status.ObservedGeneration}
}

func trimSet(s *appsv1.ReplicaSet) {
	annotations := s.Annotations
	s.ManagedFields, s.Annotations = nil, nil
	if revision, ok := annotations[revisionAnnotation]; ok {
		s.Annotations = map[string]string{revisionAnnotation: revision}
	}
	s.Spec = appsv1.ReplicaSetSpec{Replicas: s.Spec.Replicas}
	s.Status = appsv1.ReplicaSetStatus{Replicas: s.Status.Replicas}
}

// controllerKind returns the kind of the controller of an object; empty if it has none.
func controllerKind(o metav1.Object) string {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		return owner.Kind
	}
	return ""
}

// controllerOf returns the UID of the controller of an object; empty if it has none.
func controllerOf(o metav1.Object) types.UID {
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		return owner.UID
	}
	return ""
}
