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

// restingSweep is the pause while all pods are frozen: flows neither come nor go, they only grow old.
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
