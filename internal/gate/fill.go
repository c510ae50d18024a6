// SPDX-License-Identifier: Apache-2.0

package gate

import "sync/atomic"

// Fill says how full a table of the gate is.
type Fill struct {
	Table string // services, pods or parked, as in the flags
	Used  uint32 // entries
	Size  uint32 // most entries, a field of Sizes
}

// Fills returns how full the tables are, apart from that of flows, which only Sweep can count.
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
		{"services", services, s.Services},
		{"pods", g.podTable.count(), s.Pods},
		{"parked", parked, s.Parked},
	}
}
