// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// instanceContainers tells the IDs of all of this instance's pods of which there is a container, a snapshot, a folder or
// a cgroup, with the container's labels if there is one.
func (r *Runtime) instanceContainers(ctx context.Context) (map[string]map[string]string, error) {
	found := map[string]map[string]string{}
	dirs, err := os.ReadDir(r.cfg.podsDir())
	if err != nil {
		return nil, fmt.Errorf("read pods' folders: %w", err)
	}
	for _, d := range dirs {
		found[d.Name()] = nil
	}
	groups, err := childCgroups(r.cfg.cgroup())
	if err != nil {
		return nil, err
	}
	for _, id := range groups {
		found[id] = nil
	}
	filter := fmt.Sprintf("labels.%q==%q", labelInstance, r.cfg.Instance)
	err = r.client.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		found[info.Name] = nil
		return nil
	}, filter)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", native(err))
	}
	list, err := r.client.ContainerService().List(ctx, filter)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", native(err))
	}
	for _, c := range list {
		found[c.ID] = c.Labels
	}
	return found, nil
}

// adopt takes over the pods of this instance that run, and removes all others.
func (r *Runtime) adopt(ctx context.Context) error {
	found, err := r.instanceContainers(ctx)
	if err != nil {
		return err
	}
	running, err := r.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return fmt.Errorf("list tasks: %w", native(err))
	}
	pids := map[string]uint32{}
	for _, t := range running.Tasks {
		if t.Status == task.Status_RUNNING {
			pids[t.ID] = t.Pid
		}
	}
	var errs []error
	for id, labels := range found {
		pid, runs := pids[id]
		if runs && labels != nil {
			err := r.adoptPod(id, labels, pid)
			if err == nil {
				continue
			}
			r.cfg.Log.Warn("a pod that runs cannot be taken over; it is removed", "pod", id, "error", err)
		}
		if err := r.purge(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("remove pod %s of an earlier process: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Runtime) adoptPod(id string, labels map[string]string, pid uint32) error {
	target, err := os.Readlink(r.netnsLink(id))
	if err != nil {
		return err
	}
	n, err := r.nets.Adopt(filepath.Base(target))
	if err != nil {
		return err
	}
	started, err := processStart(pid)
	if err != nil {
		return err
	}
	k := runtime.Key(labels[labelService])
	p := &pod{net: n, Pod: runtime.Pod{
		ID: id, Service: k, SpecHash: labels[labelSpecHash], Addr: n.Addr, Netns: n.Netns, HostDevice: n.HostDevice, Started: started,
	}}
	r.mu.Lock()
	r.pods[id] = p
	r.mu.Unlock()
	r.tasks.Go(func() { r.await(p) })
	return nil
}

// clockTick is the unit of times in /proc/PID/stat: USER_HZ is 100 on every architecture that Go knows.
const clockTick = 10_000_000 // ns

// processStart is when a process was started, to 10 ms: field 22 of /proc/PID/stat (proc_pid_stat(5)), which counts from
// boot with the time that the machine was suspended.
func processStart(pid uint32) (monotime.Time, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, the command, may hold anything but ends with the last parenthesis.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	ticks, err := strconv.ParseInt(string(fields[19]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		return 0, err
	}
	return monotime.Time(int64(monotime.Now()) - boot.Nano() + ticks*clockTick), nil
}
