// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

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
	still := d.standsStill(s)
	if still && now.Sub(s.stillRead) < idleAgain {
		return nil
	}
	s.stillRead = now
	var last monotime.Time
	serving := false
	for _, p := range s.pods {
		if !p.home {
			if s.generation == 0 {
				// Report only that the pod is known here, so that the controller can object.
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
		if p.serving || p.unready() {
			serving = true
			last = max(last, lastPacket(p, c))
		}
	}
	if after := s.idleAfter(); !serving || still || after == 0 || now.Sub(last) < after {
		s.idleReported = 0
		return changed
	}
	// Repeated because the controller may have been replaced since.
	if s.idleReported == 0 || now.Sub(s.idleReported) > idleAgain {
		s.idleReported = now
		d.send(&wire.Idle{Service: s.addr, LastPacket: last})
	}
	return changed
}

// standsStill reports whether all serving pods of a service are frozen: then hardly anything changes, and many such
// services must cost nothing. s.mu is held.
func (d *daemon) standsStill(s *service) bool {
	if len(s.pods) == 0 || s.generation == 0 {
		return false
	}
	for _, p := range s.pods {
		if !p.home || p.state != wire.PodServing || !d.freezing.isFrozen(p.id) {
			return false
		}
	}
	return true
}
