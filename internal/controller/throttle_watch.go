// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// throttleWatch looks at how often the CPU limits of running pods slow them down.
type throttleWatch struct {
	loop    *loop
	workers *workers
	table   *table
	events  *hub
	changed *changedSet
	meter   runtime.Meter
}

// run looks at running pods with a CPU limit until the workers stop.
func (w *throttleWatch) run() {
	tick := time.NewTicker(throttleEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.workers.ctx.Done():
			return
		case <-tick.C:
		}
		var pods map[string]string
		w.loop.call(func() { pods = w.table.serving(canBeThrottled) })
		for id, name := range pods {
			used, err := w.meter.Usage(w.workers.ctx, id)
			if err != nil {
				continue // it has ended
			}
			w.loop.post(func() { w.note(id, used.ByContainer(name)) })
		}
	}
}

// canBeThrottled reports whether a pod runs and has a CPU limit.
func canBeThrottled(p *pod) bool { return p.still.report == nil && limitsCPU(p.service.spec) }

// limitsCPU reports whether one of the containers of a service has a CPU limit.
func limitsCPU(s *v1alpha1.WangellService) bool {
	return slices.ContainsFunc(containerResources(&s.Spec), func(r corev1.ResourceRequirements) bool {
		q, limited := r.Limits[corev1.ResourceCPU]
		return limited && !q.IsZero()
	})
}

// note records how the containers of a pod were throttled.
func (w *throttleWatch) note(id string, containers []runtime.ContainerUsage) {
	p := w.table.byRuntime[id]
	if p == nil || !p.throttle.note(containers) {
		return
	}
	if p.throttle.warning != "" {
		w.events.report(p.service.key, SeverityWarning, p.throttle.warning)
	}
	w.changed.check(p.service)
}
