// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"wangell.loutres.me/internal/base/cgroup"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

var _ runtime.Meter = (*Runtime)(nil)

// Usage implements runtime.Meter. It reads the pod's cgroup, of version 2 or 1, and does not ask containerd.
func (r *Runtime) Usage(_ context.Context, podID string) (runtime.Usage, error) {
	r.mu.Lock()
	p := r.pods[podID]
	r.mu.Unlock()
	if p == nil {
		return runtime.Usage{}, fmt.Errorf("pod %s: %w", podID, runtime.ErrNotFound)
	}
	u, err := r.podUsage(p)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", runtime.ErrNotFound, err)
	}
	if err != nil {
		return u, fmt.Errorf("service %s: usage of pod %s: %w", p.Service, podID, err)
	}
	return u, nil
}

// podUsage adds up the usage of a pod's containers. A container that does not run uses nothing.
func (r *Runtime) podUsage(p *pod) (runtime.Usage, error) {
	sum, err := cgroupUsage(cgroupRoot, p.cgroup)
	members := r.membersOf(p.ID)
	if err != nil || len(members) == 0 {
		return sum, err
	}
	_, name := p.Service.Split()
	limited := sum.MemoryLimit > 0
	sum.Containers = []runtime.ContainerUsage{{Name: name, Usage: sum}}
	for _, m := range members {
		if m.kind == kindInit {
			continue
		}
		u, err := cgroupUsage(cgroupRoot, r.cfg.containerCgroup(p.ID, m.name, false))
		if errors.Is(err, fs.ErrNotExist) {
			u, err = runtime.Usage{At: sum.At}, nil // it is being started again
		}
		if err != nil {
			return sum, err
		}
		sum.CPU, sum.Memory, sum.MemoryLimit = sum.CPU+u.CPU, sum.Memory+u.Memory, sum.MemoryLimit+u.MemoryLimit
		sum.Periods, sum.Throttled = sum.Periods+u.Periods, sum.Throttled+u.Throttled
		sum.ThrottledTime += u.ThrottledTime
		limited = limited && u.MemoryLimit > 0
		r.mu.Lock()
		restarts := m.restarts
		r.mu.Unlock()
		sum.Containers = append(sum.Containers, runtime.ContainerUsage{Name: m.name, Restarts: restarts, Usage: u})
	}
	if !limited {
		sum.MemoryLimit = 0
	}
	return sum, nil
}

// cgroupUsage reads the usage of a cgroup, whose path is relative to the root of the hierarchies. The working set is,
// as in Kubernetes, all memory except inactive file pages
// (https://kubernetes.io/docs/reference/instrumentation/node-metrics/).
func cgroupUsage(root, path string) (runtime.Usage, error) {
	var u runtime.Usage
	cpu, err := cgroup.Field(filepath.Join(root, path, "cpu.stat"), "usage_usec") // version 2
	unit := time.Microsecond
	if errors.Is(err, fs.ErrNotExist) {
		cpu, err = cgroup.Number(filepath.Join(root, "cpuacct", path, "cpuacct.usage")) // version 1
		unit = time.Nanosecond
	}
	if err != nil {
		return u, err
	}
	u.CPU, u.At = time.Duration(cpu)*unit, monotime.Now()
	memory := cgroup.Memory(root, path)
	if u.Memory, err = cgroup.Number(memory.Current); err != nil {
		return u, err
	}
	unused, err := cgroup.Field(memory.Stat, memory.InactiveFile)
	if err != nil {
		return u, err
	}
	u.Memory -= min(u.Memory, unused)
	if err := readLimits(root, path, memory.Limit, &u); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, err
	}
	return u, nil
}

// readLimits reads the memory limit of a cgroup, and how its CPU limit has slowed it down
// (https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html). A cgroup
// without CPU bandwidth control has no such files or fields.
func readLimits(root, path, limit string, u *runtime.Usage) error {
	stat, throttled, unit := filepath.Join(root, path, "cpu.stat"), "throttled_usec", time.Microsecond
	if _, err := os.Stat(stat); errors.Is(err, fs.ErrNotExist) { // version 1
		stat, throttled, unit = filepath.Join(root, "cpu", path, "cpu.stat"), "throttled_time", time.Nanosecond
	}
	text, err := cgroup.Read(limit)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && n < 1<<62 { // otherwise none
		u.MemoryLimit = n
	}
	var errs [3]error
	var slowed uint64
	u.Periods, errs[0] = cgroup.Field(stat, "nr_periods")
	u.Throttled, errs[1] = cgroup.Field(stat, "nr_throttled")
	slowed, errs[2] = cgroup.Field(stat, throttled)
	u.ThrottledTime = time.Duration(slowed) * unit
	if errors.Is(errors.Join(errs[:]...), cgroup.ErrNoField) {
		return nil
	}
	return errors.Join(errs[:]...)
}

// killedExit is the exit status after SIGKILL, which the kernel sends when memory runs out.
const killedExit = 128 + 9

// outOfMemory returns a message if a process was killed for lack of memory, judged by its exit status and its cgroup
// below a root of either version; empty if it was not, or if the cgroup is gone. The path is relative to the root of
// the hierarchies.
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
