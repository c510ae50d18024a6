// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/base/cgroup"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/process"
)

const cgroupRoot = cgroup.DefaultRoot

// cgroupDirs returns the folders of the cgroup with a path, which need not exist, in every hierarchy: the single one of
// version 2, the ones of version 1, and both on a hybrid system.
func cgroupDirs(path string) ([]string, error) {
	dirs := []string{filepath.Join(cgroupRoot, path)}
	controllers, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("read cgroups: %w", err)
	}
	for _, c := range controllers {
		if c.IsDir() {
			dirs = append(dirs, filepath.Join(cgroupRoot, c.Name(), path))
		}
	}
	return dirs, nil
}

// childCgroups returns the names of the cgroups directly below a path, in any hierarchy.
func childCgroups(path string) ([]string, error) {
	dirs, err := cgroupDirs(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // not in this hierarchy
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// killEvery is the interval at which killCgroup signals the remaining processes.
const killEvery = 5 * time.Millisecond

// killCgroup kills the processes of a cgroup and of the cgroups directly below it, and returns once they have exited,
// or with the error of ctx.
func killCgroup(ctx context.Context, path string) error {
	dirs, err := cgroupDirs(path)
	if err != nil {
		return err
	}
	for {
		alive := false
		below, err := childCgroups(path)
		if err != nil {
			return err
		}
		all := dirs[:len(dirs):len(dirs)]
		for _, name := range below {
			more, err := cgroupDirs(filepath.Join(path, name))
			if err != nil {
				return err
			}
			all = append(all, more...)
		}
		for _, dir := range all {
			pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				continue // not in this hierarchy
			}
			for _, field := range strings.Fields(string(pids)) {
				pid, err := strconv.Atoi(field)
				if err != nil || pid <= 1 {
					return fmt.Errorf("%s/cgroup.procs has %q", dir, field)
				}
				alive = true
				// The number still means this process: it stays in the cgroup until it is reaped.
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
					return err
				}
			}
		}
		if !alive {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(killEvery):
		}
	}
}

// removeCgroups removes an empty cgroup and the empty cgroups directly below it.
func removeCgroups(path string) error {
	below, err := childCgroups(path)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range below {
		errs = append(errs, removeCgroup(filepath.Join(path, name)))
	}
	return errors.Join(append(errs, removeCgroup(path))...)
}

// removeCgroup removes an empty cgroup in every hierarchy. The path is relative to the root of the hierarchies.
func removeCgroup(path string) error {
	dirs, err := cgroupDirs(path)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		err := unix.Rmdir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// warmEvery is the interval of warmCgroups: well below an RCU grace period, which takes some milliseconds.
const warmEvery = 2 * time.Millisecond

// warmCgroups keeps moves of processes between cgroups fast until stop is closed. The kernel delays a move by an RCU
// grace period (a percpu_rw_semaphore, cgroup_threadgroup_rwsem), about 10 ms, unless another move has ended less than
// one grace period ago. runc's move would wait in the middle of a wake. So this goroutine waits instead, while the shim
// is still starting, by moving this process to the cgroup that it is in.
func warmCgroups(procs string, stop <-chan struct{}) {
	f, err := os.OpenFile(procs, os.O_WRONLY, 0)
	if err != nil {
		return // this only saves time
	}
	defer f.Close()
	self := []byte(strconv.Itoa(os.Getpid()))
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	for {
		if _, err := f.Write(self); err != nil {
			return
		}
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// ownCgroupProcs returns the file cgroup.procs of a cgroup of this process (cgroups(7)); empty if there is none.
func ownCgroupProcs() string {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// ID:CONTROLLERS:PATH. Version 2 has no controllers there, and is mounted at the root or at unified.
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		places := []string{strings.TrimPrefix(parts[1], "name=")}
		if parts[1] == "" {
			places = []string{"", "unified"}
		}
		for _, place := range places {
			procs := filepath.Join(cgroupRoot, place, parts[2], "cgroup.procs")
			if _, err := os.Stat(procs); err == nil {
				return procs
			}
		}
	}
	return ""
}

// ended reports whether a process has ended, although its parent may not have noticed yet.
func ended(pid uint32) bool {
	fields, err := process.Stat(int(pid))
	return err != nil || len(fields) == 0 || strings.ContainsAny(fields[process.StatState], "ZX")
}

// processStart returns the start time of a process, to 10 ms.
func processStart(pid uint32) (monotime.Time, error) {
	fields, err := process.Stat(int(pid))
	if err != nil {
		return 0, err
	}
	if len(fields) <= process.StatStartTime {
		return 0, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	ticks, err := strconv.ParseInt(fields[process.StatStartTime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return 0, err
	}
	return monotime.Time(int64(monotime.Now()) - boot.Nano() + ticks*int64(process.Tick)), nil
}
