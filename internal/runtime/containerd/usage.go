// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"wangell.loutres.me/internal/monotime"
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
		return u, fmt.Errorf("service %s: what pod %s uses: %w", p.Service, podID, err)
	}
	return u, nil
}

// podUsage adds up what the containers of a pod use. One that does not run uses nothing.
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
	cpu, err := field(filepath.Join(root, path, "cpu.stat"), "usage_usec") // version 2
	unit := time.Microsecond
	if errors.Is(err, fs.ErrNotExist) {
		cpu, err = number(filepath.Join(root, "cpuacct", path, "cpuacct.usage")) // version 1
		unit = time.Nanosecond
	}
	if err != nil {
		return u, err
	}
	u.CPU, u.At = time.Duration(cpu)*unit, monotime.Now()
	dir, current, idle := filepath.Join(root, path), "memory.current", "inactive_file"
	if _, err := os.Stat(filepath.Join(dir, current)); err != nil {
		dir, current, idle = filepath.Join(root, "memory", path), "memory.usage_in_bytes", "total_inactive_file"
	}
	if u.Memory, err = number(filepath.Join(dir, current)); err != nil {
		return u, err
	}
	unused, err := field(filepath.Join(dir, "memory.stat"), idle)
	if err != nil {
		return u, err
	}
	u.Memory -= min(u.Memory, unused)
	if err := readLimits(root, path, &u); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u, err
	}
	return u, nil
}

// readLimits reads the memory limit of a cgroup, and how its CPU limit has slowed it down
// (https://docs.kernel.org/admin-guide/cgroup-v2.html, https://docs.kernel.org/scheduler/sched-bwc.html). A cgroup
// without CPU bandwidth control has no such files or fields.
func readLimits(root, path string, u *runtime.Usage) error {
	limit, stat, throttled, unit := filepath.Join(root, path, "memory.max"), filepath.Join(root, path, "cpu.stat"),
		"throttled_usec", time.Microsecond
	if _, err := os.Stat(stat); errors.Is(err, fs.ErrNotExist) { // version 1
		limit = filepath.Join(root, "memory", path, "memory.limit_in_bytes")
		stat = filepath.Join(root, "cpu", path, "cpu.stat")
		throttled, unit = "throttled_time", time.Nanosecond
	}
	text, err := os.ReadFile(limit)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && n < 1<<62 { // otherwise none
		u.MemoryLimit = n
	}
	var errs [3]error
	var slowed uint64
	u.Periods, errs[0] = field(stat, "nr_periods")
	u.Throttled, errs[1] = field(stat, "nr_throttled")
	slowed, errs[2] = field(stat, throttled)
	u.ThrottledTime = time.Duration(slowed) * unit
	if errors.Is(errors.Join(errs[:]...), errNoField) {
		return nil
	}
	return errors.Join(errs[:]...)
}

// number reads a file that holds one number.
func number(file string) (uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// errNoField means that a file has no line with some name.
var errNoField = errors.New("it has no")

// field reads a number from a file of lines "NAME NUMBER".
func field(file, name string) (uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == name {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %s: %w", file, name, err)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s: %w %s", file, errNoField, name)
}
