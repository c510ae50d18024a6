// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"time"

	"wangell.loutres.me/internal/wire"
)

const (
	// loadAgain is the number of unchanged readings after which a load is reported once more: the message may have been
	// lost, or an edge node's own flows may have changed while it was in flight.
	loadAgain = 5
	// loadReadings is the number of readings of its own flows that an edge node keeps.
	loadReadings = 3
)

// reportedLoad is the number of a pod's open flows that the controller has been sent in this session.
type reportedLoad struct {
	known     bool
	open      uint32
	unchanged int // readings since the report
}

// due reports whether a reading must be sent, and records it as sent.
func (r *reportedLoad) due(open uint32) bool {
	if !r.known || r.open != open {
		*r = reportedLoad{known: true, open: open}
		return true
	}
	if r.unchanged < loadAgain {
		r.unchanged++
		return r.unchanged == loadAgain
	}
	return false
}

// readings holds this node's latest counts of its flows to a pod on another node.
type readings struct {
	open [loadReadings]uint32
	next int
}

func (r *readings) add(open uint32) {
	r.open[r.next] = open
	r.next = (r.next + 1) % loadReadings
}

// others returns the number of a pod's flows that come from other edge nodes, given the home node's total and this
// node's own number. The total is older than own. Flows of this node that have closed since must not count as other
// nodes' flows, or a single edge node would not balance exactly; so the highest recent reading is subtracted. Flows
// that this hides are counted when the home node reports the total again.
func (r *readings) others(total, own uint32) uint32 {
	return total - min(total, max(own, slices.Max(r.open[:])))
}

// Home nodes report the open flows of their pods, from all edge nodes together, so that each edge node gives new flows
// to the pods with the fewest in all. Only services with several pods have a choice.
const (
	// loadInterval is the interval at which open flows are read, and the shortest time between two reports of a pod.
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
	if len(s.pods) < 2 || s.further() {
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
			open, ok := d.openFlows(s, id)
			switch {
			case !ok:
			case !p.home:
				p.own.add(open)
			case s.serves(id) && len(due) < loadMessages*wire.MaxPodLoads && p.load.due(open):
				due = append(due, wire.PodLoad{Service: s.addr, PodID: id, OpenFlows: open})
			}
		}
		s.mu.Unlock()
	}
	for pods := range slices.Chunk(due, wire.MaxPodLoads) {
		d.send(&wire.Loads{Pods: pods})
	}
}

// setElsewhere tells the gate how many flows a pod has from other nodes, at all ports of its service. s.mu is held.
func (d *daemon) setElsewhere(s *service, id uint64, n uint32) {
	for _, port := range s.ports() {
		if port.pods[id] == nil {
			continue
		}
		if err := d.gate.SetElsewhere(port.addr, id, n); err != nil {
			d.log.Error("cannot balance new flows", "service", s.name, "pod", id, "error", err)
		}
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
			own, _ := d.openFlows(s, p.id)
			d.setElsewhere(s, p.id, p.own.others(l.OpenFlows, own))
		}
		s.mu.Unlock()
	}
}
