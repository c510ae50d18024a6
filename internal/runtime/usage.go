// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// Usage is the resource usage of a pod, the sum over its containers.
type Usage struct {
	// CPU is the CPU time on all cores since the pod's start. It never decreases.
	CPU time.Duration
	// Memory is the working set in bytes: memory that cannot be reclaimed without hurting the pod.
	Memory uint64
	// MemoryLimit is the memory limit in bytes; 0 if there is none.
	MemoryLimit uint64
	// Periods is the number of periods in which the pod ran under a CPU limit, Throttled the number of those in which
	// it used up the limit and paused, and ThrottledTime how long all its tasks paused, since the pod's start. All
	// are zero without a limit.
	Periods, Throttled uint64
	ThrottledTime      time.Duration
	// At is the time of the measurement.
	At monotime.Time
	// Containers has each container of a pod, the main one first, if there are several and the runtime tells them apart.
	Containers []ContainerUsage
}

// ByContainer returns the usage of each container of the pod; main is the name of a single one.
func (u Usage) ByContainer(main string) []ContainerUsage {
	if len(u.Containers) == 0 {
		return []ContainerUsage{{Name: main, Usage: u}}
	}
	return u.Containers
}

// ContainerUsage is the resource usage of one container of a pod.
type ContainerUsage struct {
	Name string
	// Restarts is how often it was started again.
	Restarts int
	Usage
}

// Meter is an optional interface for runtimes that report pod usage. The runtime of a cluster does not implement it:
// there the daemons of the pods' nodes report usage.
type Meter interface {
	// Usage returns the usage of a pod, or ErrNotFound if there is no such pod. It takes well below a millisecond.
	Usage(ctx context.Context, podID string) (Usage, error)
}
