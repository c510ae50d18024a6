// SPDX-License-Identifier: Apache-2.0

package gate

import "sync/atomic"

// Fill says how full a table of the gate, or the largest share of one, is.
type Fill struct {
	Table string // services, pods, parked, flows, flows_per_source or flows_per_service
	Flag  string // the flag that sets its size
	Of    string // whose share is the largest, for people; empty for a table
	Used  uint32 // entries
	Size  uint32 // most entries, a field of Sizes
}

// Fills returns how full the tables are, apart from that of flows: see FlowUsage.
func (g *Gate) Fills() []Fill {
	s := g.cfg.Sizes
	g.services.mu.Lock()
	services := uint32(len(g.services.addrs))
	var parked uint32
	for i := range g.services.addrs {
		parked += atomic.LoadUint32(&g.statuses.at(i).Parked)
	}
	g.services.mu.Unlock()
	return []Fill{
		{Table: "services", Flag: "--services", Used: services, Size: s.Services},
		{Table: "pods", Flag: "--pods", Used: g.podTable.count(), Size: s.Pods},
		{Table: "parked", Flag: "--parked", Used: parked, Size: s.Parked},
	}
}
