// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/containers"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
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
	service             runtime.Key

	// mu serializes the starts of its process with finish.
	mu       sync.Mutex
	finished bool
	done     chan struct{} // closed by finish
	restarts int           // guarded by Runtime.mu
}

func newMember(pod string, service runtime.Key, name, kind string) *member {
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

// podSuffix is the length of the random end of a pod's ID, in bytes.
const podSuffix = 12

// ContainerID returns the ID in containerd of a container of a pod, by its name. The main container has the name of the
// service, and the ID of the pod.
func ContainerID(pod string, service runtime.Key, container string) string {
	if _, name := service.Split(); container == name || container == "" {
		return pod
	}
	return pod[max(0, len(pod)-podSuffix):] + "." + container
}

// containerCgroup is the path of the cgroup of a container, in every hierarchy. In a pod with several containers each
// has its own below that of the pod, because a cgroup of version 2 with children has no processes of its own.
func (c Config) containerCgroup(pod, container string, alone bool) string {
	if alone {
		return c.podCgroup(pod)
	}
	return filepath.Join(c.podCgroup(pod), container)
}

// containerLog is the log of one of the containers of a service beside the main one.
func (c Config) containerLog(k runtime.Key, container string) string {
	if _, name := k.Split(); container == name || container == "" {
		return c.logFile(k)
	}
	return c.logFile(k + runtime.Key("/"+container))
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
	r.note(newMember(labels[labelPod], runtime.Key(labels[labelService]), labels[labelContainer], labels[labelKind]))
}

// note makes a member known, unless it is.
func (r *Runtime) note(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.members[m.pod], func(o *member) bool { return o.id == m.id }) {
		r.members[m.pod] = append(r.members[m.pod], m)
	}
}

// ensureMembers ensures that the images of the containers beside the main one are on the machine.
func (r *Runtime) ensureMembers(ctx context.Context, s *v1alpha1.WangellService, progress runtime.Progress) error {
	for c := range s.Spec.Others {
		if _, err := r.images.ensure(ctx, s.Alone(c), progress); err != nil {
			return fmt.Errorf("container %q: %w", c.Name, err)
		}
	}
	return nil
}

// createMembers creates the records and snapshots of the containers beside the main one. On error the caller cleans up.
func (r *Runtime) createMembers(ctx context.Context, s *v1alpha1.WangellService, pod string) error {
	for i := range s.Spec.InitContainers {
		kind := kindInit
		if s.Spec.InitContainers[i].IsSidecar() {
			kind = kindSidecar
		}
		if err := r.createMember(ctx, s, &s.Spec.InitContainers[i], pod, kind); err != nil {
			return err
		}
	}
	for i := range s.Spec.Containers {
		if err := r.createMember(ctx, s, &s.Spec.Containers[i], pod, kindContainer); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) createMember(ctx context.Context, s *v1alpha1.WangellService, of *v1alpha1.Container, pod,
	kind string) error {
	own := s.Alone(of)
	info, err := r.images.ensure(ctx, own, nil)
	if err != nil {
		return fmt.Errorf("container %q: %w", of.Name, err)
	}
	m := newMember(pod, runtime.KeyOf(s), of.Name, kind)
	r.note(m)
	record := containers.Container{ID: m.id, Labels: m.labels(r.cfg.Instance)}
	if info.config.StopSignal != "" {
		record.Labels[labelStopSignal] = info.config.StopSignal
	}
	_, _, err = r.createRecord(ctx, own, info, &record, home{pod: pod,
		cgroup: r.cfg.containerCgroup(pod, m.name, false)})
	if err != nil {
		return fmt.Errorf("create container %q: %w", of.Name, explainFull(err))
	}
	return nil
}
