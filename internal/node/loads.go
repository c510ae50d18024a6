// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"time"

	"wangell.loutres.me/internal/wire"
)

// Home nodes report the open flows of their pods, from all edge nodes together, so that each edge node gives new flows
// to the pods with the fewest in all. Only services with several pods have a choice.
const (
	// loadInterval is the interval at which open flows are read, and the shortest between two reports of a pod.
	loadInterval = 100 * time.Millisecond
	// loadMessages is the largest number of messages per interval. Further loads wait for the next interval.
	loadMessages = 8
)

// balance reads and reports open flows until ctx ends. It sleeps while no service has several pods.
func (d *daemon) balance(ctx context.Context) {
	ticker := time.NewTicker(loadInterval)
	defer ticker.Stop()
	for {
		if len(d.sharedServices()) == 0 {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-d.sharedAdded:
				ticker.Reset(loadInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			d.sendLoads()
		}
	}
}

// noteShared records whether a service has several pods. s.mu is held.
func (d *daemon) noteShared(s *service) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(s.pods) < 2 {
		delete(d.shared, s)
		return
	}
	d.shared[s] = true
	notify(d.sharedAdded)
}

// sharedServices returns the services with several pods.
func (d *daemon) sharedServices() []*service {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]*service, 0, len(d.shared))
	for s := range d.shared {
		out = append(out, s)
	}
	return out
}

// sendLoads reads the open flows of all pods of services with several pods, and reports those of local pods that are
// due. Maps are iterated in random order, so if there are too many, each pod has its turn.
func (d *daemon) sendLoads() {
	var due []wire.PodLoad
	for _, s := range d.sharedServices() {
		s.mu.Lock()
		for id, p := range s.pods {
			open, ok := d.gate.OpenFlows(s.addr, id)
			switch {
			case !ok:
			case !p.home:
				p.own.add(open)
			case p.serving && len(due) < loadMessages*wire.MaxPodLoads && p.load.due(open):
				due = append(due, wire.PodLoad{Service: s.addr, PodID: id, OpenFlows: open})
			}
		}
		s.mu.Unlock()
	}
	for pods := range slices.Chunk(due, wire.MaxPodLoads) {
		d.send(&wire.Loads{Pods: pods})
	}
}

// applyLoads passes to the gate how many flows the pods on other nodes have from other edge nodes.
func (d *daemon) applyLoads(m *wire.Loads) {
	for _, l := range m.Pods {
		s := d.service(l.Service)
		if s == nil {
			continue
		}
		s.mu.Lock()
		if p := s.pods[l.PodID]; p != nil && !p.home {
			// The gate has the pod: pods are removed with s.mu held.
			own, _ := d.gate.OpenFlows(s.addr, p.id)
			if err := d.gate.SetElsewhere(s.addr, p.id, p.own.others(l.OpenFlows, own)); err != nil {
				d.log.Error("cannot balance new flows", "service", s.name, "pod", p.id, "error", err)
			}
		}
		s.mu.Unlock()
	}
}
