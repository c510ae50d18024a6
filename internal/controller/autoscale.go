// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/scale"
)

// scaleEvery is how often services are observed that follow their load: as often as daemons tell counts of flows.
const scaleEvery = time.Second

// Observation is what is known of the load of a service.
type Observation struct {
	At monotime.Time
	// Desired is how many pods there are to be, Serving how many get new flows.
	Desired, Serving int
	// Open is the number of open flows of the pods that serve.
	Open uint64
	// NewPerSecond is how many flows were established a second, of all pods, since the observation before: at least
	// scaleEvery; NaN if there was none.
	NewPerSecond float64
	// CPU and Memory are what pods that serve have in the mean, in percent of what they ask for; NaN if that is not known
	// of one of them. Only services that are scaled by one of them are measured.
	CPU, Memory float64
	// Pods are all pods that have an address.
	Pods []PodStatus
}

// Observe returns the load of a service, and whether there is such a one.
func (c *Controller) Observe(key runtime.Key) (o Observation, ok bool) {
	c.call(func() {
		if s := c.services[key]; s != nil {
			o, ok = s.observe(monotime.Now()), true
			for _, p := range s.pods {
				if p.id != 0 {
					o.Pods = append(o.Pods, p.status())
				}
			}
		}
	})
	return o, ok
}

// rate measures how fast a count grows.
type rate struct {
	at    monotime.Time
	count uint64
	value float64
}

// of returns the rate at a time, measured over at least scaleEvery.
func (r *rate) of(count uint64, now monotime.Time) float64 {
	switch d := now.Sub(r.at); {
	case r.at == 0:
		*r = rate{now, count, math.NaN()}
	case d >= scaleEvery*9/10: // a timer may be a little early
		*r = rate{now, count, float64(count-r.count) / d.Seconds()}
	}
	return r.value
}

func (s *service) observe(now monotime.Time) Observation {
	o := Observation{
		At: now, Desired: s.machine.Desired(), Serving: s.machine.Serving(), NewPerSecond: s.rate.of(s.traffic.NewFlows, now),
		CPU: s.use(v1alpha1.MetricCPU, now), Memory: s.use(v1alpha1.MetricMemory, now),
	}
	for _, p := range s.pods {
		if p.state == lifecycle.BackendServing {
			o.Open += uint64(p.stats.OpenFlows)
		}
	}
	return o
}

// value is the metric for each pod that serves; NaN if it is not known.
func (o Observation) value(m v1alpha1.ScalingMetric) float64 {
	if o.Serving == 0 {
		return math.NaN()
	}
	switch m {
	case v1alpha1.MetricConnections:
		return float64(o.Open) / float64(o.Serving)
	case v1alpha1.MetricRate:
		return o.NewPerSecond / float64(o.Serving)
	case v1alpha1.MetricCPU:
		return o.CPU
	case v1alpha1.MetricMemory:
		return o.Memory
	}
	return math.NaN()
}

// policy is what the manifest says of scaling.
func (w *wanted) policy() scale.Policy {
	s := w.spec.Spec.Scaling
	seconds := func(n int64) time.Duration { return time.Duration(n) * time.Second }
	p := scale.Policy{
		Metric: string(s.Metric), Target: float64(s.Target),
		Min: max(1, int(w.spec.Spec.MinReplicas)), Max: int(w.spec.Spec.MaxReplicas),
		Out: scale.Direction{Interval: seconds(s.OutInterval), MaxStep: int(s.MaxStep)},
		In:  scale.Direction{Interval: seconds(s.InInterval), MaxStep: int(s.MaxStep)},
	}
	if s.OutStabilization != nil {
		p.Out.Window = seconds(*s.OutStabilization)
	}
	if s.InStabilization != nil {
		p.In.Window = seconds(*s.InStabilization)
	}
	return p
}

// follows reports whether the number of a service's pods follows its load now.
func (s *service) follows() bool {
	return s.spec.Spec.Scaling != nil && s.machine.State() == lifecycle.Warm
}

// watchLoad begins to observe a service that follows its load, until it serves no more.
func (c *Controller) watchLoad(s *service) {
	if !s.follows() || c.loads[s] {
		return
	}
	if c.loads[s] = true; len(c.loads) == 1 {
		c.after(scaleEvery, c.scaleAll)
	}
}

// scaleAll has the services that follow their load have the pods that they need. It goes on as long as there are any.
func (c *Controller) scaleAll() {
	now := monotime.Now()
	for s := range c.loads {
		if !s.follows() || c.services[s.key] != s {
			delete(c.loads, s)
			s.scaler, s.rate = scale.Scaler{}, rate{}
			continue
		}
		c.measure(s, now)
		o := s.observe(now)
		d := s.scaler.Decide(s.policy(), scale.Observation{At: now, Replicas: o.Desired, Value: o.value(s.spec.Spec.Scaling.Metric)})
		if d.Replicas != o.Desired {
			c.step(s, lifecycle.Scale{N: d.Replicas, Why: d.String()})
		}
	}
	if len(c.loads) > 0 {
		c.after(scaleEvery, c.scaleAll)
	}
}
