// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/gate"
)

// sweepInterval is the time between two sweeps of the flow table.
const sweepInterval = 5 * time.Second

// Fills of the flow table, or of a client's or service's share of it, from which the log warns, and below which it may
// warn again.
const (
	fillToWarn  = 0.80
	fillToRearm = 0.70
)

// sweeper sweeps the flow table, and warns before it is full.
type sweeper struct {
	d      *daemon
	at     time.Time      // when it last swept
	usage  gate.FlowUsage // what it found
	warned bool           // the log has warned
}

// run sweeps the flow table, unless it did so just now.
func (s *sweeper) run() {
	if time.Since(s.at) < sweepInterval {
		return
	}
	s.at = time.Now()
	g, log := s.d.gate, s.d.log
	swept, err := g.Sweep(gate.AgesAt(float64(s.usage.Flows) / float64(g.MaxFlows())))
	if err != nil {
		log.Error("cannot sweep the flow table", "error", err)
	}
	s.usage = g.FlowUsage(swept)
	s.d.flows.Store(int64(s.usage.Flows))
	if swept.Fixed > 0 {
		log.Debug("counts of open flows corrected", "counts", swept.Fixed)
	}
	if swept.Evicted > 0 {
		log.Warn("the flow table was almost full: connections that had begun to end or were silent for longest are forgotten",
			"forgotten", swept.Evicted, "flows", swept.Flows)
	}
	if s.warns() {
		u := &s.usage
		log.Warn("the flow table fills: beyond its limits new connections are dropped",
			"flows", u.Flows, "limit", u.MaxFlows,
			"service", u.Service, "service_flows", u.ServiceFlows, "service_limit", u.MaxServiceFlows,
			"source", u.Source, "source_flows", u.SourceFlows, "source_limit", u.MaxSourceFlows)
	}
}

// warns decides whether to warn of the usage now: once, until it has fallen.
func (s *sweeper) warns() bool {
	fill := s.usage.Fill()
	if fill < fillToRearm {
		s.warned = false
	}
	if fill < fillToWarn || s.warned {
		return false
	}
	s.warned = true
	return true
}
