// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/gate"
)

// sweepInterval is the time between two sweeps of the flow table.
const sweepInterval = 5 * time.Second

// sweeper sweeps the flow table.
type sweeper struct {
	d     *daemon
	at    time.Time // when it last swept
	flows uint32    // entries that it found
}

// run sweeps the flow table, unless it did so just now.
func (s *sweeper) run() {
	if time.Since(s.at) < sweepInterval {
		return
	}
	s.at = time.Now()
	g, log := s.d.gate, s.d.log
	swept, err := g.Sweep(gate.AgesAt(float64(s.flows) / float64(g.MaxFlows())))
	if err != nil {
		log.Error("cannot sweep the flow table", "error", err)
	}
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
