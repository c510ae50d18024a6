// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// pods is what was told of the pods that are there.
type pods struct {
	seen  func(runtime.PodReport)
	known map[string]*sandbox // by the runtime's ID of the sandbox; only the goroutine that watches writes it
	mu    sync.Mutex          // of writing it, and of reading it elsewhere

	tellings int // calls of seen
}

// sandbox is a pod's network with the containers in it.
type sandbox struct {
	pod  runtime.Pod
	name string
	told map[string]runtime.PodEvent // the last step told, by the runtime's ID of the container
}

// concerns tells whether an event may be of a labelled pod.
func (*pods) concerns(e *criv1.ContainerEventResponse) bool {
	return e.PodSandboxStatus == nil || e.PodSandboxStatus.Labels[v1alpha1.LabelService] != ""
}

// network takes a pod whose network exists.
func (p *pods) network(s *criv1.PodSandboxStatus, addr netip.Addr, netns string) {
	service := v1alpha1.WangellService{}
	service.Namespace, service.Name = s.Metadata.Namespace, s.Labels[v1alpha1.LabelService]
	b := &sandbox{
		pod: runtime.Pod{
			ID: s.Metadata.Uid, Service: runtime.KeyOf(&service), SpecHash: s.Labels[v1alpha1.LabelSpecHash],
			Addr: addr, Netns: netns,
		},
		name: s.Metadata.Name, told: map[string]runtime.PodEvent{},
	}
	p.mu.Lock()
	p.known[s.Id] = b
	p.mu.Unlock()
	p.tell(b, runtime.PodNetworkReady, "", s.CreatedAt, 0)
}

// sandboxes are the runtime's IDs of the pods with these network namespaces, by namespace.
func (p *pods) sandboxes(netns []string) map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]string, len(netns))
	for id, b := range p.known {
		if slices.Contains(netns, b.pod.Netns) {
			out[b.pod.Netns] = id
		}
	}
	return out
}

// step is how far a container is; 0 if that is not known.
func step(s criv1.ContainerState) runtime.PodEvent {
	switch s {
	case criv1.ContainerState_CONTAINER_CREATED:
		return runtime.PodContainerCreated
	case criv1.ContainerState_CONTAINER_RUNNING:
		return runtime.PodContainerStarted
	case criv1.ContainerState_CONTAINER_EXITED:
		return runtime.PodContainerExited
	}
	return 0
}

// news tells whether a container is further than was told.
func (p *pods) news(c *criv1.Container) bool {
	b := p.known[c.PodSandboxId]
	return b != nil && step(c.State) > b.told[c.Id]
}

// forgetBut forgets containers that are not there any more: one that crashes all the time leaves many.
func (p *pods) forgetBut(there []*criv1.Container) {
	ids := make(map[string]bool, len(there))
	for _, c := range there {
		ids[c.Id] = true
	}
	for _, b := range p.known {
		maps.DeleteFunc(b.told, func(id string, s runtime.PodEvent) bool { return s == runtime.PodContainerExited && !ids[id] })
	}
}

// containers takes how far the containers of a pod are, and tells every step that was not told yet.
func (p *pods) containers(sandbox string, all []*criv1.ContainerStatus) {
	b := p.known[sandbox]
	if b == nil {
		return
	}
	// A container that was started again is another one of the same name: the newer one's steps come later.
	all = slices.SortedFunc(slices.Values(all), func(a, b *criv1.ContainerStatus) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	for _, c := range all {
		for s := max(b.told[c.Id]+1, runtime.PodContainerCreated); s <= step(c.State); s++ {
			b.told[c.Id] = s
			switch name := c.GetMetadata().GetName(); s {
			case runtime.PodContainerCreated:
				p.tell(b, s, name, c.CreatedAt, 0)
			case runtime.PodContainerStarted:
				if c.StartedAt != 0 {
					p.tell(b, s, name, c.StartedAt, 0)
				}
			case runtime.PodContainerExited:
				p.tell(b, s, name, c.FinishedAt, uint32(c.ExitCode))
			}
		}
	}
}

// gone takes a pod whose network goes. Those that are not known are ignored.
func (p *pods) gone(sandbox string, at int64) {
	if b := p.known[sandbox]; b != nil {
		p.mu.Lock()
		delete(p.known, sandbox)
		p.mu.Unlock()
		p.tell(b, runtime.PodNetworkGone, "", at, 0)
	}
}

// tell tells a step; at is Unix time in nanoseconds.
func (p *pods) tell(b *sandbox, s runtime.PodEvent, container string, at int64, code uint32) {
	p.tellings++
	p.seen(runtime.PodReport{Event: s, Pod: b.pod, Name: b.name, Container: container, At: monotimeOf(at), Code: code})
}
