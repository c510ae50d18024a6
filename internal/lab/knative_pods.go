// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
)

const (
	// labelSide is on the pods of the floor.
	labelSide = v1alpha1.Group + "/lab-side"
	// knativeLabel has the name of a pod's Knative service.
	knativeLabel = "serving.knative.dev/service"
)

// sideOf tells whose pod it is; empty if nobody's.
func sideOf(p *corev1.Pod) string {
	switch {
	case p.Labels[labelSide] == SideFloor:
		return SideFloor
	case p.Labels[v1alpha1.LabelService] != "":
		return SideWangell
	case p.Labels[knativeLabel] == knativeName(true):
		return SideKnative
	case p.Labels[knativeLabel] == knativeName(false):
		return SideKnativeNoToken
	}
	return ""
}

// podsOf returns the pods of a side.
func podsOf(pods []corev1.Pod, side string) (own []corev1.Pod) {
	for _, p := range pods {
		if sideOf(&p) == side {
			own = append(own, p)
		}
	}
	return own
}

// ready tells whether the API calls a pod Ready, and it is not ending.
func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// mayBegin returns an error unless a cold request to a side can be measured now: no pod of it is there, be it one that
// is ending, and no other pod starts or ends meanwhile.
func mayBegin(pods []corev1.Pod, side string) error {
	for i := range pods {
		p := &pods[i]
		switch owner := sideOf(p); {
		case owner == side:
			return fmt.Errorf("the request would not be cold: pod %s of %s is there (%s)", p.Name, side, podState(p))
		case !ready(p):
			return fmt.Errorf("the request would not be alone: pod %s of %q starts or ends (%s)", p.Name, owner, podState(p))
		}
	}
	return nil
}

func podState(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "terminating"
	}
	return string(p.Status.Phase)
}

// floorPod makes a pod of a template that no controller and no daemon takes for its own.
func floorPod(template corev1.PodTemplateSpec, namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{labelSide: SideFloor}},
		Spec:       *template.Spec.DeepCopy(),
	}
	return pod
}
