// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/runtime"
)

// tellEnding delivers when a pod that is being deleted gets its stop signal, if that is known. The lock is held.
func (r *Runtime) tellEnding(p *pod, o *corev1.Pod) {
	if signal, grace, ok := endOf(o, p.container); ok {
		r.ending.put(runtime.Ending{PodID: p.rt.ID, Signal: signal, Grace: grace})
	}
}

// endOf returns the time from the deletion of a pod to the stop signal of a container, and from then to SIGKILL.
// kubelet runs the preStop hook before the signal and within the same grace period, and the end of a hook other than
// a sleep is unknown: then ok is false.
func endOf(o *corev1.Pod, container string) (signal, grace time.Duration, ok bool) {
	i := slices.IndexFunc(o.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if i < 0 || o.DeletionGracePeriodSeconds == nil {
		return 0, 0, false
	}
	total := time.Duration(*o.DeletionGracePeriodSeconds) * time.Second
	switch l := o.Spec.Containers[i].Lifecycle; {
	case l == nil || l.PreStop == nil:
	case l.PreStop.Sleep == nil:
		return 0, 0, false
	default:
		signal = min(time.Duration(l.PreStop.Sleep.Seconds)*time.Second, total)
	}
	return signal, total - signal, true
}
