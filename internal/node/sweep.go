// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/gate"
)

// A sweep of the flow table follows the end of the last one after sweepInterval, or later: sweeps take at most one part
// in sweepShare of the time.
const (
	sweepInterval = 5 * time.Second
	sweepShare    = 10
)

// sweepPause is the time between a sweep that took the given time and the next one.
func sweepPause(took time.Duration) time.Duration {
	return max(sweepInterval, (sweepShare-1)*took)
}

// sweeper sweeps the flow table.
type sweeper struct {
	d     *daemon
	next  time.Time // when it sweeps again
	flows uint32    // entries that it found
}

// run sweeps the flow table, unless it did so just now.
func (s *sweeper) run() {
	began := time.Now()
	if began.Before(s.next) {
		return
	}
	g, log := s.d.gate, s.d.log
	swept, err := g.Sweep(gate.AgesAt(float64(s.flows) / float64(g.MaxFlows())))
	if err != nil {
		log.Error("cannot sweep the flow table", "error", err)
	}
	s.next = time.Now().Add(sweepPause(time.Since(began)))
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
