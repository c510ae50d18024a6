// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"log/slog"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/scale"
	"wangell.loutres.me/internal/runtime"
)

// usageEvery is how often a runtime.Meter is asked for the usage of pods.
const usageEvery = 2 * time.Second

// autoscaler gives services as many pods as their load needs.
type autoscaler struct {
	loop    *loop
	workers *workers
	table   *table
	meter   runtime.Meter // nil if the runtime is none
	log     *slog.Logger
	deliver deliver

	following map[*service]bool // services that follow their load now
}

// watch begins to observe a service if it follows its load.
func (a *autoscaler) watch(s *service) {
	if !s.followsLoad() || a.following[s] {
		return
	}
	if a.following[s] = true; len(a.following) == 1 {
		a.loop.after(scaleEvery, a.scaleAll)
	}
}

// scaleAll scales the services that follow their load, and schedules itself again while there are any.
func (a *autoscaler) scaleAll() {
	now := monotime.Now()
	for s := range a.following {
		if !s.followsLoad() || a.table.services[s.key] != s {
			delete(a.following, s)
			s.scaler, s.newFlows = scale.Scaler{}, rate{}
			continue
		}
		a.measure(s, now)
		o := s.observe(now)
		d := s.scaler.Decide(s.policy(), scale.Observation{
			At: now, Replicas: o.Desired, Value: o.value(s.spec.Spec.Scaling.Metric),
		})
		if d.Replicas != o.Desired {
			a.deliver(s, lifecycle.Scale{N: d.Replicas, Why: d.String()})
		}
	}
	if len(a.following) > 0 {
		a.loop.after(scaleEvery, a.scaleAll)
	}
}

// measure asks the runtime for the usage of a service's serving pods, if the service is scaled by it.
func (a *autoscaler) measure(s *service, now monotime.Time) {
	if a.meter == nil || !metered(&s.spec.Spec) || now.Sub(s.measured) < usageEvery || a.loop.idle() {
		return
	}
	s.measured = now
	for _, p := range s.pods {
		if p.published != lifecycle.PodServing {
			continue
		}
		id := p.rt.ID
		a.workers.group.Go(func() {
			u, err := a.meter.Usage(a.workers.ctx, id)
			if err != nil {
				a.log.Debug("the usage of a pod cannot be measured", "pod", id, "error", err)
				return // without a value nothing changes
			}
			a.loop.post(func() {
				if p := a.table.byRuntime[id]; p != nil {
					p.usage.add(u)
				}
			})
		})
	}
}
