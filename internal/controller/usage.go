// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

const (
	// usageSpan is the least time over which CPU is measured.
	usageSpan = 1500 * time.Millisecond
	// usageAge is how long what is known of a pod's use counts.
	usageAge = 15 * time.Second
	// usageEvery is how often a runtime is asked that knows what its pods use.
	usageEvery = 2 * time.Second
)

// consumption is what a pod uses.
type consumption struct {
	last  runtime.Usage
	cores float64 // in use between the last two measurements; NaN before there are two
}

// take takes a measurement. They may come out of order.
func (u *consumption) take(next runtime.Usage) {
	switch span := next.At.Sub(u.last.At); {
	case u.last.At == 0 || next.CPU < u.last.CPU && span > 0: // the first one, or its processes were started anew
		u.last, u.cores = next, math.NaN()
	case span >= usageSpan:
		u.cores = float64(next.CPU-u.last.CPU) / float64(span)
		u.last = next
	}
}

// of tells what the pod has of a metric, in percent of what it asks for; NaN if that is not known.
func (u *consumption) of(m v1alpha1.ScalingMetric, requests map[corev1.ResourceName]float64, now monotime.Time) float64 {
	if u.last.At == 0 || now.Sub(u.last.At) > usageAge {
		return math.NaN()
	}
	switch m {
	case v1alpha1.MetricCPU:
		return 100 * u.cores / requests[corev1.ResourceCPU]
	case v1alpha1.MetricMemory:
		return 100 * float64(u.last.Memory) / requests[corev1.ResourceMemory]
	}
	return math.NaN()
}

// metered tells whether a service is scaled by what its pods use.
func metered(s *v1alpha1.WangellServiceSpec) bool {
	return s.Scaling != nil && (s.Scaling.Metric == v1alpha1.MetricCPU || s.Scaling.Metric == v1alpha1.MetricMemory)
}

// requestsOf is what all containers of a pod ask for together, in cores and bytes; NaN for what one of them does not ask
// for: a percentage of it would mean nothing.
func requestsOf(s *v1alpha1.WangellServiceSpec) map[corev1.ResourceName]float64 {
	all := []corev1.ResourceRequirements{s.Resources}
	if s.Template != nil {
		all = nil
		for _, c := range s.Template.Spec.Containers {
			all = append(all, c.Resources)
		}
		for _, c := range s.Template.Spec.InitContainers {
			if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				all = append(all, c.Resources) // it runs beside them
			}
		}
	}
	sum := map[corev1.ResourceName]float64{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		for _, r := range all {
			sum[name] += request(r, name)
		}
	}
	return sum
}

// request is what a container asks for. As in Kubernetes, one that only has a limit asks for that.
func request(r corev1.ResourceRequirements, name corev1.ResourceName) float64 {
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		if q, ok := list[name]; ok && q.Cmp(resource.Quantity{}) > 0 {
			return q.AsApproximateFloat64()
		}
	}
	return math.NaN()
}

// use is the mean of what serving pods have of a metric, in percent of what they ask for; NaN if it is not known of one.
func (s *service) use(m v1alpha1.ScalingMetric, now monotime.Time) float64 {
	requests, sum, n := requestsOf(&s.spec.Spec), 0.0, 0
	for _, p := range s.pods {
		if p.state == lifecycle.BackendServing {
			sum, n = sum+p.used.of(m, requests, now), n+1
		}
	}
	return sum / float64(n) // NaN if there is none
}

// usage takes what a pod's home node tells.
func (c *Controller) usage(from wire.Peer, u wire.PodUsage) {
	if p := c.find(u.Service, u.PodID); p != nil && p.node == from.Node {
		p.used.take(runtime.Usage{CPU: time.Duration(u.CPU), Memory: u.Memory, At: u.At})
	}
}

// measure asks the runtime, if it knows, what the pods of a service use that is scaled by that.
func (c *Controller) measure(s *service, now monotime.Time) {
	meter, ok := c.cfg.Runtime.(runtime.Meter)
	if !ok || !metered(&s.spec.Spec) || now.Sub(s.measured) < usageEvery || c.halted {
		return
	}
	s.measured = now
	for _, p := range s.pods {
		if p.state != lifecycle.BackendServing {
			continue
		}
		id := p.rt.ID
		c.workers.Go(func() {
			u, err := meter.Usage(c.ctx, id)
			if err != nil {
				c.log.Debug("it is not known what a pod uses", "pod", id, "error", err)
				return // without a value nothing changes
			}
			c.post(func() {
				if p := c.byRuntime[id]; p != nil {
					p.used.take(u)
				}
			})
		})
	}
}
