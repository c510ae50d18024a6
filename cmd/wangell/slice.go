// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// shortSlice is the shortest time slice that the scheduler accepts, in nanoseconds.
const shortSlice = 100_000

// shortenSlices requests short time slices for this process, so that it is scheduled at once when a packet or an event
// arrives while other processes keep the CPUs busy, as they do while a container starts. The process's share of CPU
// time stays the same. Threads created later inherit the setting. Kernels before 6.12 ignore it, and nothing depends on
// it. (sched_attr(2), sched_runtime of SCHED_OTHER; EEVDF, PREEMPT_SHORT.)
func shortenSlices() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		attr, err := unix.SchedGetAttr(id, 0)
		if err != nil || attr.Policy != unix.SCHED_NORMAL {
			continue
		}
		attr.Runtime = shortSlice
		_ = unix.SchedSetAttr(id, attr, 0)
	}
}
