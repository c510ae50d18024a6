// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"wangell.loutres.me/api/v1alpha1"
)

// NewClient makes the client that a Runtime wants: it speaks protobuf and has no rate limit of its own. Its watches keep
// the one HTTP/2 connection open on which a wake's request goes out, too.
func NewClient(config *rest.Config) (kubernetes.Interface, error) {
	c := rest.CopyConfig(config)
	c.QPS, c.RateLimiter = -1, nil
	c.ContentType = runtime.ContentTypeProtobuf
	c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("client of the API server %s: %w", config.Host, err)
	}
	return client, nil
}

// newInformers watches what has the label of services; each object is trimmed before it is kept.
func newInformers(cfg Config) (pods, deployments, sets cache.SharedIndexInformer) {
	labelled := informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.LabelService })
	factory := informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, informers.WithNamespace(cfg.Namespace), labelled,
		informers.WithTransform(trim))
	return factory.Core().V1().Pods().Informer(), factory.Apps().V1().Deployments().Informer(), factory.Apps().V1().ReplicaSets().Informer()
}

// trim drops what is not used of an object.
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
	p.OwnerReferences = slices.DeleteFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Controller == nil || !*o.Controller })
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, TerminationGracePeriodSeconds: p.Spec.TerminationGracePeriodSeconds, Containers: names(p.Spec.Containers)}
}

// names keeps of containers what messages need.
func names(in []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(in))
	for i, c := range in {
		out[i] = corev1.Container{Name: c.Name, Image: c.Image}
	}
	return out
}

func trimDeployment(d *appsv1.Deployment) {
	d.ManagedFields, d.OwnerReferences, d.Annotations = nil, nil, nil
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Status.ObservedGeneration}
}

func trimSet(s *appsv1.ReplicaSet) {
	s.ManagedFields, s.Annotations = nil, only(s.Annotations, revisionAnnotation)
	s.Spec = appsv1.ReplicaSetSpec{Replicas: s.Spec.Replicas}
	s.Status = appsv1.ReplicaSetStatus{Replicas: s.Status.Replicas}
}

// revisionAnnotation is what the Deployment controller gives to a ReplicaSet that it has found to be its own.
const revisionAnnotation = "deployment.kubernetes.io/revision"

// only is what a map has of one key.
func only(m map[string]string, key string) map[string]string {
	if v, ok := m[key]; ok {
		return map[string]string{key: v}
	}
	return nil
}
