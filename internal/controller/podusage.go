// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"wangell.loutres.me/internal/runtime"
)

// PodUsage is the resource usage of a container of a pod. Counters start with the container.
type PodUsage struct {
	Service runtime.Key `json:"service"`
	Pod     string      `json:"pod"`
	// Container is the name of the container, and Restarts how often it was started again in its pod.
	Container string `json:"container"`
	Restarts  int    `json:"restarts"`
	// CPUSeconds is the CPU time on all cores.
	CPUSeconds float64 `json:"cpuSeconds"`
	// MemoryBytes is the working set: memory that cannot be reclaimed without hurting it. MemoryLimitBytes is 0 if
	// there is no limit.
	MemoryBytes      uint64 `json:"memoryBytes"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes,omitempty"`
	// Periods is the number of periods in which it ran under a CPU limit, and Throttled the number of those in which
	// it used up the limit and paused. ThrottledSeconds is how long its tasks paused, together. All are 0 without a
	// limit.
	Periods          uint64  `json:"periods"`
	Throttled        uint64  `json:"throttled"`
	ThrottledSeconds float64 `json:"throttledSeconds"`
	// At is the time of the measurement.
	At time.Time `json:"at"`
}

// errNoMeter is returned in a cluster.
var errNoMeter = errors.New("in a cluster, kubectl top pods has this")

// Stats measures the containers of the pods of a service, or those of all services if key is empty. They are sorted
// by service, and within one by the order of their start. Pods that end meanwhile are left out. Only a runtime.Meter
// has them.
func (c *Controller) Stats(ctx context.Context, key runtime.Key) ([]PodUsage, error) {
	meter, ok := c.runtime.(runtime.Meter)
	if !ok {
		return nil, errNoMeter
	}
	var list []PodUsage
	if !c.loop.call(func() {
		for k, s := range c.engine.table.services {
			for _, p := range s.pods {
				if (key == "" || k == key) && p.runs() {
					list = append(list, PodUsage{Service: k, Pod: p.rt.ID, Container: s.spec.Name})
				}
			}
		}
	}) {
		return nil, ErrClosed
	}
	slices.SortStableFunc(list, func(a, b PodUsage) int { return cmp.Compare(a.Service, b.Service) })
	var measured []PodUsage
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
