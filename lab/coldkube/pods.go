// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/lab/cluster"
)

const (
	// labelSide marks the floor's pods.
	labelSide = v1alpha1.Group + "/lab-side"
	// labelKnative has the name of a pod's Knative service.
	labelKnative = "serving.knative.dev/service"
)

// knativeName returns the name of the Knative service with or without token volume.
func knativeName(token bool) string {
	if token {
		return "hello-knative"
	}
	return "hello-knative-notoken"
}

// sideOf returns the side of a pod, or "" for a pod of another owner.
func sideOf(p *corev1.Pod) string {
	switch {
	case p.Labels[labelSide] == SideFloor:
		return SideFloor
	case p.Labels[v1alpha1.LabelService] != "":
		return SideWangell
	case p.Labels[labelKnative] == knativeName(true):
		return SideKnative
	case p.Labels[labelKnative] == knativeName(false):
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

// checkCold returns an error unless a cold request to a side can be measured now: the side has no pod, not even a
// terminating one, and no other pod starts or ends.
func checkCold(pods []corev1.Pod, side string) error {
	for i := range pods {
		p := &pods[i]
		switch owner := sideOf(p); {
		case owner == side:
			return fmt.Errorf("the request would not be cold: pod %s of %s exists (%s)", p.Name, side, podState(p))
		case !cluster.Ready(p):
			return fmt.Errorf("the request would be disturbed: pod %s of %q starts or ends (%s)", p.Name, owner, podState(p))
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

// gone fails while a side has a pod.
func gone(ctx context.Context, c *cluster.Cluster, side string) error {
	pods, err := c.Pods(ctx, "")
	if err != nil {
		return err
	}
	if own := podsOf(pods, side); len(own) > 0 {
		return fmt.Errorf("pod %s of %s still exists", own[0].Name, side)
	}
	return nil
}
