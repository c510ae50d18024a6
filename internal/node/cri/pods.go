// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// pods are the existing pods, with the last report of each.
type pods struct {
	onReport func(runtime.PodReport)
	known    map[string]*sandbox // by the runtime's ID of the sandbox; written by the goroutine of Run only
	mu       sync.Mutex          // held to write known, and to read it in other goroutines

	reports int // number of calls of onReport
}

// sandbox is a pod's network namespace with its containers.
type sandbox struct {
	pod          runtime.Pod
	name         string
	lastReported map[string]runtime.PodEvent // by the runtime's ID of the container
}

// concerns reports whether an event may concern a labelled pod.
func (*pods) concerns(e *criv1.ContainerEventResponse) bool {
	return e.PodSandboxStatus == nil || e.PodSandboxStatus.Labels[v1alpha1.LabelService] != ""
}

// networkReady adds a pod whose network exists.
func (p *pods) networkReady(s *criv1.PodSandboxStatus, addr netip.Addr, netns string) {
	service := v1alpha1.WangellService{}
	service.Namespace, service.Name = s.Metadata.Namespace, s.Labels[v1alpha1.LabelService]
	b := &sandbox{
		pod: runtime.Pod{
			ID: s.Metadata.Uid, Service: v1alpha1.KeyOf(&service), SpecHash: s.Labels[v1alpha1.LabelSpecHash],
			Addr: addr, Netns: netns,
		},
		name: s.Metadata.Name, lastReported: map[string]runtime.PodEvent{},
	}
	p.mu.Lock()
	p.known[s.Id] = b
	p.mu.Unlock()
	p.report(b, runtime.PodReport{Event: runtime.PodNetworkReady}, s.CreatedAt)
}

// sandboxes returns the runtime's IDs of the pods with these network namespaces, by namespace.
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

// eventOf returns the last event of a container in this state; 0 if the state is not known.
func eventOf(s criv1.ContainerState) runtime.PodEvent {
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

// advanced reports whether a container has had an unreported event.
func (p *pods) advanced(c *criv1.Container) bool {
	b := p.known[c.PodSandboxId]
	return b != nil && eventOf(c.State) > b.lastReported[c.Id]
}

// forgetOthers forgets exited containers that are not listed: one that crashes again and again leaves many.
func (p *pods) forgetOthers(listed []*criv1.Container) {
	ids := make(map[string]bool, len(listed))
	for _, c := range listed {
		ids[c.Id] = true
	}
	for _, b := range p.known {
		maps.DeleteFunc(b.lastReported, func(id string, e runtime.PodEvent) bool {
			return e == runtime.PodContainerExited && !ids[id]
		})
	}
}

// containers reports the events of a pod's containers that were not reported yet.
func (p *pods) containers(sandbox string, all []*criv1.ContainerStatus) {
	b := p.known[sandbox]
	if b == nil {
		return
	}
	// A container that is restarted is a new one of the same name: its events come later.
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *criv1.ContainerStatus) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	for _, c := range all {
		for s := max(b.lastReported[c.Id]+1, runtime.PodContainerCreated); s <= eventOf(c.State); s++ {
			b.lastReported[c.Id] = s
			switch name := c.GetMetadata().GetName(); s {
			case runtime.PodContainerCreated:
				p.report(b, runtime.PodReport{Event: s, Container: name}, c.CreatedAt)
			case runtime.PodContainerStarted:
				if c.StartedAt != 0 {
					p.report(b, runtime.PodReport{Event: s, Container: name}, c.StartedAt)
				}
			case runtime.PodContainerExited:
				p.report(b, runtime.PodReport{
					Event: s, Container: name, Code: uint32(c.ExitCode), LogPath: c.LogPath,
				}, c.FinishedAt)
			}
		}
	}
}

// networkGone removes a pod whose network is gone. Unknown pods are ignored.
func (p *pods) networkGone(sandbox string, at int64) {
	if b := p.known[sandbox]; b != nil {
		p.mu.Lock()
		delete(p.known, sandbox)
		p.mu.Unlock()
		p.report(b, runtime.PodReport{Event: runtime.PodNetworkGone}, at)
	}
}

// report completes a report of an event and delivers it; at is Unix time in nanoseconds.
func (p *pods) report(b *sandbox, r runtime.PodReport, at int64) {
	p.reports++
	r.Pod, r.Name, r.At = b.pod, b.name, monotimeOf(at)
	p.onReport(r)
}

// monotimeOf converts a Unix time in nanoseconds; it returns now if that is 0 or in the future.
func monotimeOf(at int64) monotime.Time {
	now := monotime.Now()
	if since := time.Since(time.Unix(0, at)); at > 0 && since > 0 {
		return max(now.Add(-since), 1)
	}
	return now
}
