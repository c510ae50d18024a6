// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"wangell.loutres.me/internal/node/freezer"
)

// cgroups freezes processes. Paths are below the root of the hierarchies.
type cgroups interface {
	// Freeze returns once all processes of a cgroup stand still. After an error they run.
	Freeze(ctx context.Context, cgroup string) error
	// Thaw lets the processes of a cgroup run.
	Thaw(cgroup string) error
	// Gone reports whether a cgroup does not exist.
	Gone(cgroup string) bool
	// Reclaim moves the memory of a frozen cgroup to swap, until ctx ends.
	Reclaim(ctx context.Context, cgroup string) error
	// WorkingSet returns the memory that a cgroup has used since Reclaim.
	WorkingSet(cgroup string) (*freezer.WorkingSet, error)
	// Memory measures a cgroup.
	Memory(cgroup string) (freezer.Memory, error)
	// CPU returns the CPU time that a cgroup has used.
	CPU(cgroup string) (time.Duration, error)
	// Weight returns the weight with which a cgroup competes for the processors.
	Weight(cgroup string) (uint64, error)
	// RestoreWeight gives a cgroup a former weight, unless somebody has decided on another one since.
	RestoreWeight(cgroup string, former uint64) error
	// Inside returns the processes in a pod's cgroup.
	Inside(cgroup string) (freezer.Inside, error)
	// Holds reports whether a process is in a cgroup or below it.
	Holds(cgroup string, pid int) (bool, error)
}
