// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
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
	dir, events, limit, peak := filepath.Join(root, path), "memory.events", "memory.max", "memory.peak"
	if _, err := os.Stat(filepath.Join(dir, events)); err != nil {
		dir = filepath.Join(root, "memory", path)
		events, limit, peak = "memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
	}
	if kills, err := field(filepath.Join(dir, events), "oom_kill"); err != nil || kills == 0 {
		return ""
	}
	// Version 2 writes "max" where there is no limit, version 1 the largest number of pages.
	most := "no limit"
	if n, err := number(filepath.Join(dir, limit)); err == nil && n < math.MaxInt64>>20<<20 {
		most = fmt.Sprintf("resources.limits.memory is %d MiB", n>>20)
	}
	if n, err := number(filepath.Join(dir, peak)); err == nil { // Linux 5.19 and later, with version 2
		most += fmt.Sprintf(", peak %d MiB", n>>20)
	}
	return "out of memory (" + most + ")"
}
