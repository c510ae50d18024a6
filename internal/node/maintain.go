// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// statsInterval is the time between two readings of the pods' counters.
const statsInterval = time.Second

// maintain reports counters, idle services and scarce resources, memory included, and sweeps the flow table, until
// ctx ends. It sleeps while there is no pod, no flow, nothing parked and nothing scarce, and looks only every
// idleAgain while all pods are frozen.
func (d *daemon) maintain(ctx context.Context) {
	ticker := time.NewTicker(statsInterval)
	defer ticker.Stop()
	sweeps := sweeper{d: d, flows: 1} // an earlier daemon may have left flows
	again := false
	for {
		d.mu.Lock()
		pods := d.pods
		d.mu.Unlock()
		resting := false
		if !again && pods == 0 && sweeps.flows == 0 {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-d.maintenance:
			}
			ticker.Reset(statsInterval)
		} else if resting = !again && d.rests(pods); resting {
			ticker.Reset(idleAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-d.whileResting(resting):
			resting = false
		}
		ticker.Reset(statsInterval)
		d.sendStats(monotime.Now())
		d.sendAnswers(monotime.Now())
		d.sendUsage(ctx)
		d.removeUnlisted(monotime.Now())
		sweeps.run(resting)
		again = d.checkScarce(time.Now())
		again = d.checkMemory() || again
	}
}

// rests reports whether this node has pods and all of them are frozen.
func (d *daemon) rests(pods int) bool {
	if pods == 0 || d.freezing.number() < pods {
		return false
	}
	for _, s := range d.allServices() {
		s.mu.Lock()
		moves := len(s.pods) > 0 && !d.allFrozen(s)
		s.mu.Unlock()
		if moves {
			return false
		}
	}
	return true
}

// whileResting returns a channel that ends the rest after a while; nil if the daemon does not rest.
func (d *daemon) whileResting(resting bool) <-chan struct{} {
	if resting {
		return d.maintenance
	}
	return nil
}

// A sweep of the flow table begins sweepInterval after the end of the last one, or later: sweeps take at most
// 1/sweepShare of the time.
const (
	sweepInterval = 5 * time.Second
	sweepShare    = 10
)

// restingSweep is the pause while all pods are frozen: flows neither begin nor end, they only age.
const restingSweep = time.Minute

// sweepPause is the time between a sweep that took the given time and the next one.
func sweepPause(took time.Duration, resting bool) time.Duration {
	if resting {
		return max(restingSweep, (sweepShare-1)*took)
	}
	return max(sweepInterval, (sweepShare-1)*took)
}

// sweeper sweeps the flow table.
type sweeper struct {
	d     *daemon
	ended time.Time     // the end of the last sweep; zero before the first
	took  time.Duration // of that sweep
	flows uint32        // entries that it found
}

// run sweeps the flow table, unless it did so just now.
func (s *sweeper) run(resting bool) {
	began := time.Now()
	if !s.ended.IsZero() && began.Sub(s.ended) < sweepPause(s.took, resting) {
		return
	}
	g, log := s.d.gate, s.d.log
	swept, err := g.Sweep(gate.AgesAt(float64(s.flows) / float64(g.MaxFlows())))
	if err != nil {
		log.Error("cannot sweep the flow table", "error", err)
	}
	s.ended = time.Now()
	s.took = s.ended.Sub(began)
	s.flows = swept.Flows
	fills := g.FlowUsage(swept)
	s.d.flows.Store(&fills)
	if swept.Fixed > 0 {
		log.Debug("counts of open flows corrected", "counts", swept.Fixed)
	}
	if swept.Evicted > 0 {
		log.Warn("the flow table was almost full: connections that had begun to end or were silent for longest are forgotten",
			"forgotten", swept.Evicted, "flows", swept.Flows)
	}
}

// idleAgain is the interval at which Idle is repeated while the controller does not stop the pods of an idle service.
const idleAgain = 10 * time.Second

// sendStats reports the counters of pods that changed, and services that have become idle.
func (d *daemon) sendStats(now monotime.Time) {
	var changed []wire.PodStats
	for _, s := range d.allServices() {
		s.mu.Lock()
		changed = append(changed, d.readStats(s, now)...)
		s.mu.Unlock()
	}
	for pods := range slices.Chunk(changed, wire.MaxPodStats) {
		d.send(&wire.Stats{Pods: pods})
	}
}

// readStats returns the changed counters of a service's pods, and reports the service if it has become idle. s.mu is
// held.
func (d *daemon) readStats(s *service, now monotime.Time) (changed []wire.PodStats) {
	if s.further() {
		return nil // the first port reports for all
	}
	frozen := d.allFrozen(s)
	if frozen && now.Sub(s.countersRead) < idleAgain {
		return nil
	}
	s.countersRead = now
	var last monotime.Time
	serving := false
	for _, p := range s.pods {
		if !p.home {
			if s.generation == 0 {
				// Report only that this node has the pod, so that the controller can object.
				changed = append(changed, wire.PodStats{Service: s.addr, PodID: p.id})
			}
			continue
		}
		c, err := d.counters(s, p)
		if err != nil {
			d.log.Error("cannot read the counters of a pod", "service", s.name, "pod", p.id, "error", err)
			continue
		}
		d.countDirect(s, p, &c)
		st := wire.PodStats{
			Service: s.addr, PodID: p.id, OpenFlows: c.Open, NewFlows: c.NewFlows,
			BytesIn: c.BytesIn, BytesOut: c.BytesOut, LastPacket: c.LastPacket,
		}
		if p.state == wire.PodDraining && !p.settling && p.lastReported.OpenFlows != c.Open {
			d.sendQuiet(s, p)
		}
		if st != p.lastReported || s.generation == 0 {
			p.lastReported = st
			changed = append(changed, st)
		}
		if s.serves(p.id) || p.unready() {
			serving = true
			last = max(last, s.lastPacket(p.id, c))
		}
	}
	if after := s.idleAfter(); !serving || frozen || after == 0 || now.Sub(last) < after {
		s.idleReported = 0
		return changed
	}
	// Repeated because the controller may have been replaced since.
	if due := s.idleReported == 0 || now.Sub(s.idleReported) > idleAgain; due && !d.awaited(s, now) {
		s.idleReported = now
		d.send(&wire.Idle{Service: s.addr, LastPacket: last})
	}
	return changed
}

// allFrozen reports whether all serving pods of a service are frozen: then hardly anything changes, and many such
// services must cost nothing. s.mu is held.
func (d *daemon) allFrozen(s *service) bool {
	s = s.first()
	if len(s.pods) == 0 || s.generation == 0 {
		return false
	}
	for _, p := range s.pods {
		if !p.home || !s.isToServe(p.id) || !d.freezing.isFrozen(p.id) {
			return false
		}
	}
	return true
}
