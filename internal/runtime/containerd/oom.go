// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"math"

	"wangell.loutres.me/internal/base/cgroup"
)

// killedExit is the exit status of a process that SIGKILL ended, as the kernel does when memory runs out.
const killedExit = 128 + 9

// outOfMemory returns a message if a process with an exit status was killed for lack of memory, judged by its cgroup
// below a root of either version; empty if it was not, or the cgroup is gone. The path is relative to the root of the
// hierarchies.
func outOfMemory(root, path string, code uint32) string {
	if code != killedExit {
		return ""
	}
	memory := cgroup.Memory(root, path)
	if kills, err := cgroup.Field(memory.Events, "oom_kill"); err != nil || kills == 0 {
		return ""
	}
	// Version 2 writes "max" where there is no limit, version 1 the largest number of pages.
	most := "no limit"
	if n, err := cgroup.Number(memory.Limit); err == nil && n < math.MaxInt64>>20<<20 {
		most = fmt.Sprintf("resources.limits.memory is %d MiB", n>>20)
	}
	if n, err := cgroup.Number(memory.Peak); err == nil {
		most += fmt.Sprintf(", peak %d MiB", n>>20)
	}
	return "out of memory (" + most + ")"
}
