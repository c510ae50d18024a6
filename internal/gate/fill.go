// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"sync/atomic"
)

// Fill says how full a table of the gate, or the largest share of one, is.
type Fill struct {
	Table   string         // services, pods, parked, source_rules, flows, flows_per_source or flows_per_service
	Flag    string         // the flag that sets its size; empty: its size is fixed
	Source  netip.Prefix   // flows_per_source: the client address with the largest share, if there is one; else zero
	Service netip.AddrPort // flows_per_service: the service address with the largest share, likewise
	Used    uint32         // entries
	Size    uint32         // most entries
}

// Of names the owner of the largest share; empty for a table.
func (f *Fill) Of() string {
	switch {
	case f.Source.IsValid():
		return "client " + f.Source.Addr().String()
	case f.Service.IsValid():
		return "service address " + f.Service.String()
	}
	return ""
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
	rules := g.services.sets.count()
	g.services.mu.Unlock()
	return []Fill{
		{Table: "services", Flag: "--services", Used: services, Size: s.Services},
		{Table: "pods", Flag: "--pods", Used: g.podTable.count(), Size: s.Pods},
		{Table: "parked", Flag: "--parked", Used: parked, Size: s.Parked},
		{Table: "source_rules", Used: rules, Size: g.objs.SourceRules.MaxEntries()},
	}
}
