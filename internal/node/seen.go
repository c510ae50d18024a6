// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// sights keeps what was seen of the pods that are there, to tell it anew in every session.
type sights struct {
	mu   sync.Mutex
	pods map[string]*sighted // by UID
}

// sighted is a pod's network and the last step of each of its containers, by name.
type sighted struct {
	network    runtime.PodReport
	containers map[string]runtime.PodReport
}

// add takes a sight and tells it; nobody else tells meanwhile, so the newest is told last.
func (s *sights) add(seen runtime.PodReport, send func(wire.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == nil {
		s.pods = map[string]*sighted{}
	}
	p := s.pods[seen.Pod.ID]
	switch {
	case seen.Event == runtime.PodNetworkReady:
		s.pods[seen.Pod.ID] = &sighted{network: seen, containers: map[string]runtime.PodReport{}}
	case p == nil || p.network.Pod.Netns != seen.Pod.Netns:
		// Of a network that is gone already.
	case seen.Event == runtime.PodNetworkGone:
		delete(s.pods, seen.Pod.ID)
	default:
		p.containers[seen.Container] = seen
	}
	send(sight(seen))
}

// tell tells everything.
func (s *sights) tell(send func(wire.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.pods)) {
		p := s.pods[id]
		send(sight(p.network))
		for _, name := range slices.Sorted(maps.Keys(p.containers)) {
			send(sight(p.containers[name]))
		}
	}
}

// sight is a sight as the wire tells it.
func sight(s runtime.PodReport) *wire.PodReport {
	return &wire.PodReport{
		Event: uint8(s.Event), Service: string(s.Pod.Service), UID: s.Pod.ID, Name: s.Name, Container: s.Container,
		Addr: s.Pod.Addr, Netns: s.Pod.Netns, SpecHash: s.Pod.SpecHash, At: s.At, Code: s.Code,
	}
}

// seen takes what the container runtime tells.
func (d *daemon) seen(s runtime.PodReport) {
	d.sights.add(s, d.send)
	if s.Event == runtime.PodContainerExited {
		d.exited(string(s.Pod.Service), s.Pod.Addr, s.Pod.Netns)
	}
}

// exited looks after the pods of a service in a network in which a process ended. Such a pod takes no new flow until it
// listens again: it may be started anew in its place. If something listens still, it was another process.
func (d *daemon) exited(name string, addr netip.Addr, netns string) {
	for _, s := range d.all() {
		s.mu.Lock()
		if s.name == name {
			for _, p := range s.pods {
				if p.home && p.serving && p.addr.Addr() == addr && p.netns == netns {
					d.restart(s, p)
				}
			}
		}
		s.mu.Unlock()
	}
}

// restart takes a pod that does not listen any more out of the choice and waits until it does. s.mu is held.
func (d *daemon) restart(s *service, p *pod) {
	if w, err := newWatch(p.netns, p.addr); err == nil {
		still := w.listening()
		w.close()
		if still {
			return
		}
	}
	if err := d.gate.Drain(s.addr, p.id); err != nil {
		d.log.Error("a pod whose process ended keeps getting flows", "service", s.name, "pod", p.id, "error", err)
		return
	}
	p.serving, p.restarting = false, true
	d.log.Info("a pod's process ended; it gets no flow until it listens again", "service", s.name, "pod", p.id)
	if err := d.startWatch(s, p); err != nil {
		d.log.Warn("it is not known when a pod listens again", "service", s.name, "error", err)
	}
}
