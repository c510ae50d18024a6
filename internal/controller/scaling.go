// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"log/slog"
	"math"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/scale"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
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

// Observation is the load of a service.
type Observation struct {
	At monotime.Time
	// Desired is the number of pods that the service should have, Serving the number of pods that get new flows.
	Desired, Serving int
	// Open is the number of open flows of the serving pods.
	Open uint64
	// NewPerSecond is the number of flows of all pods established per second since the previous observation, at least
	// scaleEvery ago; NaN if there was none.
	NewPerSecond float64
	// CPU and Memory are the mean use of the serving pods in percent of their requests; NaN if it is not known for one
	// of them. Only services that are scaled by one of them are measured.
	CPU, Memory float64
	// Requests is the number of requests per second and Concurrency the number of those that are not answered yet,
	// including those that wait; NaN if they are not known.
	Requests, Concurrency float64
	// Pods are all pods that have an address.
	Pods []status.Pod
}

// value is the metric for each serving pod; NaN if it is not known.
func (o Observation) value(m v1alpha1.ScalingMetric) float64 {
	if o.Serving == 0 {
		return math.NaN()
	}
	switch m {
	case v1alpha1.MetricConnections:
		return float64(o.Open) / float64(o.Serving)
	case v1alpha1.MetricRate:
		return o.NewPerSecond / float64(o.Serving)
	case v1alpha1.MetricRequests:
		return o.Requests / float64(o.Serving)
	case v1alpha1.MetricConcurrency:
		return o.Concurrency / float64(o.Serving)
	case v1alpha1.MetricCPU:
		return o.CPU
	case v1alpha1.MetricMemory:
		return o.Memory
	}
	return math.NaN()
}

// observe measures the load at a time.
func (s *service) observe(now monotime.Time) Observation {
	o := Observation{
		At: now, Desired: s.machine.Desired(), Serving: s.machine.Serving(),
		NewPerSecond: s.newFlows.at(s.traffic.NewFlows, now),
		CPU:          s.use(v1alpha1.MetricCPU, now), Memory: s.use(v1alpha1.MetricMemory, now),
	}
	for _, p := range s.pods {
		if p.published == lifecycle.PodServing {
			o.Open += uint64(p.stats.OpenFlows)
		}
	}
	o.Requests, o.Concurrency = s.requestLoad(o.Open > 0, now)
	return o
}

// use is the mean use of a resource by the serving pods, in percent of their requests; NaN if it is not known for one
// of them.
func (s *service) use(m v1alpha1.ScalingMetric, now monotime.Time) float64 {
	requests, sum, n := requestsOf(&s.spec.Spec), 0.0, 0
	for _, p := range s.pods {
		if p.published == lifecycle.PodServing {
			sum, n = sum+p.usage.percent(m, requests, now), n+1
		}
	}
	return sum / float64(n) // NaN if there is none
}

// followsLoad reports whether the number of the service's pods follows its load now.
func (s *service) followsLoad() bool {
	return s.spec.Spec.Scaling != nil && s.machine.State() == lifecycle.Warm
}
