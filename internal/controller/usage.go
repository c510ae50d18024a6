// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

const (
	// usageSpan is the shortest time over which CPU is measured.
	usageSpan = 1500 * time.Millisecond
	// usageAge is how long a measurement of a pod is valid.
	usageAge = 15 * time.Second
)

// consumption is the CPU time and memory that a pod uses.
type consumption struct {
	last  runtime.Usage
	cores float64 // in use between the last two measurements; NaN before there are two
}

// add records a measurement. Measurements may arrive out of order.
func (u *consumption) add(next runtime.Usage) {
	switch span := next.At.Sub(u.last.At); {
	case u.last.At == 0 || next.CPU < u.last.CPU && span > 0: // the first one, or the pod's processes were restarted
		u.last, u.cores = next, math.NaN()
	case span >= usageSpan:
		u.cores = float64(next.CPU-u.last.CPU) / float64(span)
		u.last = next
	}
}

// percent returns the use of a resource in percent of the pod's requests; NaN if it is not known.
func (u *consumption) percent(
	m v1alpha1.ScalingMetric, requests map[corev1.ResourceName]float64, now monotime.Time,
) float64 {
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

// metered reports whether a service is scaled by what its pods use.
func metered(s *v1alpha1.WangellServiceSpec) bool {
	return s.Scaling != nil && (s.Scaling.Metric == v1alpha1.MetricCPU || s.Scaling.Metric == v1alpha1.MetricMemory)
}

// requestsOf returns the sum of the requests of all containers of a pod, in cores and bytes. A resource that one of
// them does not request is NaN, because a percentage of it would be meaningless.
func requestsOf(s *v1alpha1.WangellServiceSpec) map[corev1.ResourceName]float64 {
	sum := map[corev1.ResourceName]float64{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		for _, r := range containerResources(s) {
			sum[name] += request(r, name)
		}
	}
	return sum
}

// containerResources returns the resources of all containers of a pod that run side by side.
func containerResources(s *v1alpha1.WangellServiceSpec) []corev1.ResourceRequirements {
	all := []corev1.ResourceRequirements{s.Resources}
	for i := range s.Containers {
		all = append(all, s.Containers[i].Resources)
	}
	for i := range s.InitContainers {
		if c := &s.InitContainers[i]; c.IsSidecar() {
			all = append(all, c.Resources)
		}
	}
	if s.Template != nil {
		all = nil
		for _, c := range s.Template.Spec.Containers {
			all = append(all, c.Resources)
		}
		for _, c := range s.Template.Spec.InitContainers {
			if v1alpha1.IsSidecar(c.RestartPolicy) {
				all = append(all, c.Resources) // it runs beside the others
			}
		}
	}
	return all
}

// request returns a container's request. As in Kubernetes, a container with only a limit requests that.
func request(r corev1.ResourceRequirements, name corev1.ResourceName) float64 {
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		if q, ok := list[name]; ok && q.Cmp(resource.Quantity{}) > 0 {
			return q.AsApproximateFloat64()
		}
	}
	return math.NaN()
}

// errNoMeter is returned in a cluster.
var errNoMeter = errors.New("in a cluster, kubectl top pods has this")

// Stats measures the containers of the pods of a service, or those of all services if key is empty. They are sorted
// by service, and within one by the order of their start. Pods that end meanwhile are left out. Only a runtime.Meter
// has them.
func (c *Controller) Stats(ctx context.Context, key v1alpha1.Key) ([]status.PodUsage, error) {
	meter, ok := c.runtime.(runtime.Meter)
	if !ok {
		return nil, errNoMeter
	}
	var list []status.PodUsage
	if !c.loop.call(func() {
		for k, s := range c.engine.table.services {
			for _, p := range s.pods {
				if (key == "" || k == key) && p.runs() {
					list = append(list, status.PodUsage{Service: k, Pod: p.rt.ID, Container: s.spec.Name})
				}
			}
		}
	}) {
		return nil, ErrClosed
	}
	slices.SortStableFunc(list, func(a, b status.PodUsage) int { return cmp.Compare(a.Service, b.Service) })
	var measured []status.PodUsage
	for _, u := range list {
		used, err := meter.Usage(ctx, u.Pod)
		if errors.Is(err, runtime.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, c := range used.ByContainer(u.Container) {
			u.Container, u.Restarts = c.Name, c.Restarts
			u.CPUSeconds, u.MemoryBytes, u.MemoryLimitBytes = c.CPU.Seconds(), c.Memory, c.MemoryLimit
			u.Periods, u.Throttled, u.ThrottledSeconds = c.Periods, c.Throttled, c.ThrottledTime.Seconds()
			u.At = c.At.Wall()
			measured = append(measured, u)
		}
	}
	return measured, nil
}
