// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/base/text"
)

// maxWhy bounds what is shown of a pod's trouble, in bytes.
const maxWhy = 200

// whyNotReady says of one pod of a DaemonSet that is not ready why; empty if none is known.
func (d *doctor) whyNotReady(ctx context.Context, o *appsv1.DaemonSet) string {
	if o.Spec.Selector == nil {
		return ""
	}
	pods, err := d.api.CoreV1().Pods(o.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(o.Spec.Selector),
	})
	if err != nil {
		return "" // the numbers are told anyway
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for i := range pods.Items {
		p := &pods.Items[i]
		if why := troubleOf(p); why != "" {
			return fmt.Sprintf("%s on %s: %s", p.Name, cmp.Or(p.Spec.NodeName, "no node"), text.Shorten(why, maxWhy))
		}
	}
	return ""
}

// troubleOf says why a pod is not ready, by its status; empty if that says nothing.
func troubleOf(p *corev1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		waits, ended := c.State.Waiting, c.LastTerminationState.Terminated
		switch {
		case waits != nil && waits.Reason != "ContainerCreating" && waits.Reason != "PodInitializing":
			return strings.TrimSuffix(waits.Reason+": "+waits.Message, ": ")
		case c.State.Running != nil && !c.Ready && ended != nil:
			return fmt.Sprintf("container %s ended with exit code %d, and runs again", c.Name, ended.ExitCode)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return strings.TrimSuffix(p.Status.Reason+": "+p.Status.Message, ": ")
}
