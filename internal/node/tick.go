// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

const (
	statsInterval = time.Second     // how often counts of pods are read and told
	sweepInterval = 5 * time.Second // how often the flow table is swept
	idleAgain     = 10 * time.Second
	statsPerBatch = 14 // wire.Stats
)

// tick tells counts and idle services, and sweeps the flow table, until ctx ends. While there is neither a pod
// nor a flow it sleeps.
func (d *daemon) tick(ctx context.Context) {
	ticker := time.NewTicker(statsInterval)
	defer ticker.Stop()
	flows, swept := uint32(1), time.Time{} // an earlier daemon may have left flows
	for {
		d.mu.Lock()
		pods := d.pods
		d.mu.Unlock()
		if pods == 0 && flows == 0 {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-d.changed:
				ticker.Reset(statsInterval)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		d.report(monotime.Now())
		d.measure(ctx)
		d.forgetUntold(monotime.Now())
		if time.Since(swept) >= sweepInterval {
			swept = time.Now()
			s, err := d.gate.Sweep(gate.DefaultAges())
			if err != nil {
				d.log.Error("the flow table cannot be swept", "error", err)
			}
			flows = s.Flows
			if s.Fixed > 0 {
				d.log.Debug("counts of open flows corrected", "pods", s.Fixed)
			}
		}
	}
}

// report tells the controller what changed.
func (d *daemon) report(now monotime.Time) {
	var batch []wire.PodStats
	flush := func() {
		if len(batch) > 0 {
			d.send(&wire.Stats{Pods: batch})
			batch = nil
		}
	}
	for _, s := range d.all() {
		s.mu.Lock()
		for _, st := range d.reportService(s, now) {
			if batch = append(batch, st); len(batch) == statsPerBatch {
				flush()
			}
		}
		s.mu.Unlock()
	}
	flush()
}

// reportService reads the counts of a service's pods, and tells when it has become idle. s.mu is held.
func (d *daemon) reportService(s *service, now monotime.Time) (changed []wire.PodStats) {
	var last monotime.Time
	serving := false
	for _, p := range s.pods {
		if !p.home {
			if s.generation == 0 {
				// Only that it is known here: the controller may know better.
				changed = append(changed, wire.PodStats{Service: s.addr, PodID: p.id})
			}
			continue
		}
		c, err := d.gate.PodCounters(s.addr, p.id)
		if err != nil {
			d.log.Error("a pod's counts cannot be read", "service", s.name, "error", err)
			continue
		}
		st := wire.PodStats{Service: s.addr, PodID: p.id, OpenFlows: c.Open, NewFlows: c.NewFlows, BytesIn: c.BytesIn, BytesOut: c.BytesOut, LastPacket: c.LastPacket}
		if p.state == wire.PodDraining && p.told.OpenFlows != c.Open {
			d.quiet(s, p)
		}
		if st != p.told || s.generation == 0 {
			p.told = st
			changed = append(changed, st)
		}
		if p.serving {
			serving = true
			last = max(last, lastPacket(p, c))
		}
	}
	if !serving || s.idle == 0 || now.Sub(last) < s.idle {
		s.idleTold = 0
		return changed
	}
	// Told once, and again if nothing follows: the controller may have been another one.
	if s.idleTold == 0 || now.Sub(s.idleTold) > idleAgain {
		s.idleTold = now
		d.send(&wire.Idle{Service: s.addr, LastPacket: last})
	}
	return changed
}
