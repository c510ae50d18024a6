// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/snapshots"
	"wangell.loutres.me/api/v1alpha1"
)

// Kinds of a member, as a label has them.
const (
	kindInit      = "init"      // runs to its end before the next container starts
	kindSidecar   = "sidecar"   // is started among the init containers, and runs as long as the pod
	kindContainer = "container" // is started after the main container
)

// member is a container of a pod beside its main one. It has a record, a snapshot and a cgroup of its own, and the
// pod's network and volumes.
type member struct {
	id, pod, name, kind string
	service             v1alpha1.Key

	// mu serializes the starts of its process with finish.
	mu       sync.Mutex
	finished bool
	done     chan struct{} // closed by finish
	restarts int           // guarded by Runtime.mu
}

func newMember(pod string, service v1alpha1.Key, name, kind string) *member {
	return &member{
		id: ContainerID(pod, service, name), pod: pod, name: name, kind: kind, service: service, done: make(chan struct{}),
	}
}

// labels are the labels of its record and its snapshot, from which noteLabels restores it.
func (m *member) labels(instance string) map[string]string {
	return map[string]string{
		labelInstance: instance, labelService: string(m.service), labelPod: m.pod, labelContainer: m.name, labelKind: m.kind,
	}
}

// finish ends the restarts of the member's process.
func (m *member) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.finished {
		m.finished = true
		close(m.done)
	}
}

// ContainerID returns the ID in containerd of a container of a pod, by its name. The main container has the name of the
// service, and the ID of the pod.
func ContainerID(pod string, service v1alpha1.Key, container string) string {
	if _, name := service.Split(); container == name || container == "" {
		return pod
	}
	return pod[max(0, len(pod)-podSuffix):] + "." + container
}

// containerCgroup is the path of the cgroup of a container, in every hierarchy. In a pod with several containers, each
// has its own cgroup below the pod's, because a cgroup of version 2 with children cannot hold processes.
func (c Config) containerCgroup(pod, container string, alone bool) string {
	if alone {
		return c.podCgroup(pod)
	}
	return filepath.Join(c.podCgroup(pod), container)
}

// containerLog is the log of one of the containers of a service beside the main one.
func (c Config) containerLog(k v1alpha1.Key, container string) string {
	if _, name := k.Split(); container == name || container == "" {
		return c.logFile(k)
	}
	return c.logFile(k + v1alpha1.Key("/"+container))
}

// alone reports whether the pods of a service have only a main container.
func alone(s *v1alpha1.WangellService) bool {
	return len(s.Spec.Containers)+len(s.Spec.InitContainers) == 0
}

// membersOf returns the containers of a pod beside its main one, in the order in which they are started.
func (r *Runtime) membersOf(pod string) []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.members[pod])
}

// noteLabels restores a member from the labels of a record or a snapshot of an earlier process.
func (r *Runtime) noteLabels(labels map[string]string) {
	r.note(newMember(labels[labelPod], v1alpha1.Key(labels[labelService]), labels[labelContainer], labels[labelKind]))
}

// note records a member, unless it is known.
func (r *Runtime) note(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.members[m.pod], func(o *member) bool { return o.id == m.id }) {
		r.members[m.pod] = append(r.members[m.pod], m)
	}
}

// containersOf returns the IDs of all containers of a pod.
func (r *Runtime) containersOf(pod string) []string {
	ids := []string{pod}
	for _, m := range r.membersOf(pod) {
		ids = append(ids, m.id)
	}
	return ids
}

// Pauses before a container of a pod is started again: none the first time, then restartFirst, twice as long each time,
// up to restartLongest. A container that has run for restartStable begins anew. The values are kubelet's
// (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#restart-policy).
const (
	restartFirst   = 10 * time.Second
	restartLongest = 5 * time.Minute
	restartStable  = 10 * time.Minute
)

// memberStart is the time limit for starting a container again.
const memberStart = 30 * time.Second

// restartPause returns the pause before a container is started again, given the number of its starts.
func restartPause(restarts int) time.Duration {
	if restarts == 0 {
		return 0
	}
	return min(restartFirst<<min(restarts-1, 10), restartLongest)
}

// runInit runs the init containers of a pod, one after the other, and starts its sidecars among them. An init container
// that fails is started again until ctx ends. waits, which may be nil, gets the reason for each wait.
func (r *Runtime) runInit(ctx context.Context, pod string, waits func(string)) error {
	if waits == nil {
		waits = func(string) {}
	}
	for _, m := range r.membersOf(pod) {
		switch m.kind {
		case kindInit:
			if err := r.runToEnd(ctx, m, waits); err != nil {
				return fmt.Errorf("init container %q: %w", m.name, err)
			}
		case kindSidecar:
			if err := r.startMember(ctx, m); err != nil {
				return fmt.Errorf("init container %q: %w", m.name, err)
			}
		}
	}
	waits("")
	return nil
}

// startContainers starts the other containers of a pod whose main container runs.
func (r *Runtime) startContainers(ctx context.Context, pod string) error {
	for _, m := range r.membersOf(pod) {
		if m.kind == kindContainer {
			if err := r.startMember(ctx, m); err != nil {
				return fmt.Errorf("container %q: %w", m.name, err)
			}
		}
	}
	return nil
}

// runToEnd returns once an init container has succeeded.
func (r *Runtime) runToEnd(ctx context.Context, m *member, waits func(string)) error {
	var failure error // the last one
	_, service := m.service.Split()
	waits(fmt.Sprintf("init container %q does not end: wangell logs %s -c %s", m.name, service, m.name))
	for restarts := 0; ; restarts++ {
		begin := fileSize(r.cfg.containerLog(m.service, m.name))
		if err := r.launchMember(ctx, m, restarts > 0); err != nil {
			return errors.Join(failure, err)
		}
		var code uint32
		err := retry(ctx, func() error {
			reply, err := r.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: m.id})
			if err == nil {
				code = reply.ExitStatus
			}
			return native(err)
		})
		if err == nil {
			// It returns once all output is in the log.
			_, err = r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: m.id})
			err = absent(err)
		}
		if err != nil {
			return errors.Join(failure, err)
		}
		if code == 0 {
			return nil
		}
		failure = fmt.Errorf("exited with code %d%s", code, outputOf(r.cfg.containerLog(m.service, m.name), begin))
		waits(fmt.Sprintf("init container %q %v", m.name, failure))
		pause := restartPause(restarts)
		r.cfg.Log.Warn("init container has failed; it is started again", "service", m.service, "container", m.name,
			"code", code, "in", pause)
		select {
		case <-ctx.Done():
			return errors.Join(failure, ctx.Err())
		case <-m.done:
			return failure
		case <-time.After(pause):
		}
	}
}

// outputOf returns the last line that a container has written since a position in its log, for a message.
func outputOf(log string, begin int64) string {
	if line := LastLine(log, begin); line != "" {
		return fmt.Sprintf(": its output ends with %q", line)
	}
	return ", without output"
}

// startMember starts the process of a container, and starts it again whenever it ends.
func (r *Runtime) startMember(ctx context.Context, m *member) error {
	if err := r.launchMember(ctx, m, false); err != nil {
		return err
	}
	r.tasks.Go(func() { r.keepMember(m) })
	return nil
}

// keepMember starts the process of a container again whenever it ends, until the pod or this process does.
func (r *Runtime) keepMember(m *member) {
	restarts, begun := 0, time.Now()
	for {
		code, _, ok := r.waitTask(m.id)
		if !ok {
			return
		}
		if time.Since(begun) >= restartStable {
			restarts = 0
		}
		pause := restartPause(restarts)
		select {
		case <-m.done:
			return
		default:
		}
		cause := outOfMemory(cgroupRoot, r.cfg.containerCgroup(m.pod, m.name, false), code)
		r.cfg.Log.Warn("container has ended; it is started again", "service", m.service, "pod", m.pod,
			"container", m.name, "code", code, "cause", cause, "in", pause)
		select {
		case <-r.ctx.Done():
			return
		case <-m.done:
			return
		case <-time.After(pause):
		}
		restarts++
		r.mu.Lock()
		m.restarts++
		r.mu.Unlock()
		begun = time.Now()
		ctx, cancel := context.WithTimeout(r.ctx, memberStart)
		err := r.launchMember(ctx, m, true)
		cancel()
		if err != nil && r.ctx.Err() == nil {
			r.cfg.Log.Warn("container cannot be started again", "service", m.service, "pod", m.pod, "container", m.name,
				"error", err)
		}
	}
}

var errFinished = errors.New("its pod has ended")

// launchMember starts the process of a container. If again is set, it ran before, and gets a new layer.
func (r *Runtime) launchMember(ctx context.Context, m *member, again bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.finished {
		return errFinished
	}
	rootfs, err := r.rootOf(ctx, m, again)
	if err != nil {
		return explainFull(err)
	}
	if _, err := r.createTask(ctx, m.id, rootfs, r.cfg.containerLog(m.service, m.name)); err != nil {
		return explainFull(err)
	}
	_, err = r.startTask(ctx, m.id)
	return err
}

// rootOf returns the mounts of a container's root; with fresh, of a new layer.
func (r *Runtime) rootOf(ctx context.Context, m *member, fresh bool) ([]*types.Mount, error) {
	record, err := r.client.ContainerService().Get(ctx, m.id)
	if err != nil {
		return nil, native(err)
	}
	service := r.client.SnapshotService(record.Snapshotter)
	if !fresh {
		mounts, err := service.Mounts(ctx, m.id)
		return mountsToProto(mounts), native(err)
	}
	if _, err := r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: m.id}); absent(err) != nil {
		return nil, native(err)
	}
	info, err := service.Stat(ctx, m.id)
	if err != nil {
		return nil, native(err)
	}
	if err := service.Remove(ctx, m.id); err != nil {
		return nil, native(err)
	}
	mounts, err := service.Prepare(ctx, m.id, info.Parent, snapshots.WithLabels(info.Labels))
	return mountsToProto(mounts), native(err)
}
