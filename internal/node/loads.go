// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"time"

	"wangell.loutres.me/internal/wire"
)

// Home nodes tell how many open flows their pods have, by all edge nodes together, so that each edge node gives new flows
// to the pods with the fewest in all. Only services with several pods have a choice.
const (
	// loadInterval is how often open flows are read, and told at most.
	loadInterval = 100 * time.Millisecond
	// loadAgain is after how many readings without a change a count is told once more: the message may have been lost, or
	// the edge node's own flows may have changed while it was on its way.
	loadAgain = 5
	// loadMessages is how many messages an interval may make. Whatever does not fit waits for the next one.
	loadMessages = 8
	// loadReadings is how many readings of its own flows an edge node looks back on.
	loadReadings = 3
)

// balance reads and tells open flows until ctx ends. While no service has several pods it sleeps.
func (d *daemon) balance(ctx context.Context) {
	ticker := time.NewTicker(loadInterval)
	defer ticker.Stop()
	for {
		if len(d.sharedServices()) == 0 {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-d.sharing:
				ticker.Reset(loadInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			d.readLoads()
		}
	}
}

// share notes whether a service has several pods. s.mu is held.
func (d *daemon) share(s *service) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(s.pods) < 2 {
		delete(d.shared, s)
		return
	}
	d.shared[s] = true
	select {
	case d.sharing <- struct{}{}:
	default:
	}
}

func (d *daemon) sharedServices() []*service {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]*service, 0, len(d.shared))
	for s := range d.shared {
		out = append(out, s)
	}
	return out
}

// readLoads reads the open flows of all pods of services that have several, and tells those of this node's pods that are
// due. The order of a map is another each time, so if they are too many each has its turn.
func (d *daemon) readLoads() {
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

// loads takes the open flows of pods on other nodes.
func (d *daemon) loads(m *wire.Loads) {
	for _, l := range m.Pods {
		s := d.service(l.Service)
		if s == nil {
			continue
		}
		s.mu.Lock()
		if p := s.pods[l.PodID]; p != nil && !p.home {
			// It cannot have gone: s.mu is held.
			own, _ := d.gate.OpenFlows(s.addr, p.id)
			if err := d.gate.SetElsewhere(s.addr, p.id, p.own.others(l.OpenFlows, own)); err != nil {
				d.log.Error("new flows are not balanced", "service", s.name, "pod", p.id, "error", err)
			}
		}
		s.mu.Unlock()
	}
}

// told is what the controller was told of a pod's open flows in this session.
type told struct {
	known bool
	open  uint32
	quiet int // readings since then without a change
}

// due reports whether a reading is to be told, and takes it as told then.
func (t *told) due(open uint32) bool {
	if !t.known || t.open != open {
		*t = told{known: true, open: open}
		return true
	}
	if t.quiet < loadAgain {
		t.quiet++
		return t.quiet == loadAgain
	}
	return false
}

// readings are the last ones of the flows that a pod on another node has by this one.
type readings struct {
	open [loadReadings]uint32
	next int
}

func (r *readings) add(open uint32) {
	r.open[r.next] = open
	r.next = (r.next + 1) % loadReadings
}

// others returns how many of a pod's flows are other edge nodes', when its home node counts all and this node has own now.
// The home node's count is older than own: flows that were closed since must not be taken for others', or one edge node
// alone would not balance exactly. So the most that this node had of late is taken off. What that hides is seen when
// the home node tells the count once more.
func (r *readings) others(all, own uint32) uint32 {
	return all - min(all, max(own, slices.Max(r.open[:])))
}
