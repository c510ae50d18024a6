// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"path/filepath"
	"sync"

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

// containerCgroup is the path of the cgroup of a container, in every hierarchy. In a pod with several containers each
// has its own below that of the pod, because a cgroup of version 2 with children has no processes of its own.
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
