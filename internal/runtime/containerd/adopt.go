// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/snapshots"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// instanceContainers returns the IDs of all pods of this instance that have a container, a snapshot, a folder or a
// cgroup, with the container's labels if there is a container.
func (r *Runtime) instanceContainers(ctx context.Context) (map[string]map[string]string, error) {
	found := map[string]map[string]string{}
	for _, dir := range []string{r.cfg.podsDir(), r.cfg.emptyDirs()} {
		dirs, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read pods' folders: %w", err)
		}
		for _, d := range dirs {
			found[d.Name()] = nil
		}
	}
	groups, err := childCgroups(r.cfg.cgroup())
	if err != nil {
		return nil, err
	}
	for _, id := range groups {
		found[id] = nil
	}
	filter := fmt.Sprintf("labels.%q==%q", labelInstance, r.cfg.Instance)
	for _, s := range r.allSnapshotters() {
		list := func() error {
			return native(r.client.SnapshotService(s).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
				if pod := info.Labels[labelPod]; pod != "" {
					r.noteLabels(info.Labels)
					found[pod] = nil
				} else {
					found[info.Name] = nil
				}
				return nil
			}, filter))
		}
		if s == lazySnapshotter {
			if err := patiently(ctx, list); err != nil {
				r.cfg.Log.Warn("snapshots of lazy pulls cannot be listed; some may be left", "error", err)
			}
		} else if err := list(); err != nil {
			return nil, fmt.Errorf("list snapshots of %s: %w", s, err)
		}
	}
	list, err := r.client.ContainerService().List(ctx, filter)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", native(err))
	}
	for _, c := range list {
		if pod := c.Labels[labelPod]; pod != "" {
			r.noteLabels(c.Labels)
			if _, ok := found[pod]; !ok {
				found[pod] = nil
			}
			continue
		}
		found[c.ID] = c.Labels
		c.Labels[labelSnapshotter] = c.Snapshotter
	}
	return found, nil
}

// adopt takes over the running pods of this instance and removes all others.
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
		if t.Status == task.Status_RUNNING || t.Status == task.Status_PAUSED { // paused is frozen
			pids[t.ID] = t.Pid
		}
	}
	var errs []error
	for id, labels := range found {
		pid, runs := pids[id]
		if runs && labels != nil && !r.onlyPrepared(id, labels, pid) {
			err := r.adoptPod(id, labels, pid)
			if err == nil {
				continue
			}
			r.cfg.Log.Warn("a running pod cannot be adopted; it is removed", "pod", id, "error", err)
		}
		if err := r.purge(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("remove pod %s of an earlier process: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Runtime) adoptPod(id string, labels map[string]string, pid uint32) error {
	target, err := os.Readlink(r.cfg.netnsLink(id))
	if err != nil {
		return err
	}
	n, err := r.nets.Adopt(filepath.Base(target))
	if err != nil {
		return err
	}
	started, err := processStart(pid)
	if labels[labelPrepared] != "" {
		started, err = r.woken(id)
	}
	if err != nil {
		return err
	}
	k := v1alpha1.Key(labels[labelService])
	if r.cfg.Names != nil {
		namespace, _ := k.Split()
		r.cfg.Names.Assign(n.Name, namespace)
	}
	_, name := k.Split()
	members := r.membersOf(id)
	p := &pod{net: n, snapshotter: labels[labelSnapshotter], keeps: labels[labelKeeps] != "",
		cgroup: r.cfg.containerCgroup(id, name, len(members) == 0), Pod: runtime.Pod{
			ID: id, Service: k, SpecHash: labels[labelSpecHash], Addr: n.Addr, Netns: n.Netns, HostDevice: n.HostDevice,
			Started: started, ImageDigest: labels[labelImageDigest], Cgroup: r.cfg.podCgroup(id),
		}}
	r.mu.Lock()
	r.pods[id] = p
	r.mu.Unlock()
	r.tasks.Go(func() { r.await(p) })
	for _, m := range members {
		if m.kind != kindInit {
			r.tasks.Go(func() { r.keepMember(m) })
		}
	}
	return nil
}
