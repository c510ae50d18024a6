// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/netip"
	"sync/atomic"
)

// counterNames are the names of enum counter in metrics.
var counterNames = [gateCounterCOUNTERS]string{
	gateCounterCOUNT_ARP_REPLIES:   "arp_replies",
	gateCounterCOUNT_PINGS:         "pings",
	gateCounterCOUNT_ICMP_ERRORS:   "icmp_errors",
	gateCounterCOUNT_MALFORMED:     "malformed",
	gateCounterCOUNT_FRAGMENTS:     "fragments",
	gateCounterCOUNT_STRAY:         "stray",
	gateCounterCOUNT_NO_SERVICE:    "no_service",
	gateCounterCOUNT_BAD_RST:       "bad_rst",
	gateCounterCOUNT_OUT_OF_WINDOW: "out_of_window",
	gateCounterCOUNT_FLOWS_FULL:    "flows_full",
	gateCounterCOUNT_PARKED_FULL:   "parked_full",
	gateCounterCOUNT_EVICTED:       "evicted",
	gateCounterCOUNT_EVENTS_LOST:   "events_lost",
	gateCounterCOUNT_NO_POD:        "no_pod",
	gateCounterCOUNT_TOO_LONG:      "too_long",
	gateCounterCOUNT_UNKNOWN_NODE:  "unknown_node",
	gateCounterCOUNT_BAD_ENCAP:     "bad_encap",
	gateCounterCOUNT_LATE_REPLIES:  "late_replies",
	gateCounterCOUNT_NO_ROUTE:      "no_route",
	gateCounterCOUNT_RETRIES:       "retries",
	gateCounterCOUNT_TOO_BIG:       "too_big",
	gateCounterCOUNT_ASKED:         "asked",
	gateCounterCOUNT_ASK_LIMIT:     "ask_limit",
	gateCounterCOUNT_MOVED:         "moved",
	gateCounterCOUNT_SHORTCUTS:     "shortcuts",
	gateCounterCOUNT_SOURCE_FULL:   "source_full",
	gateCounterCOUNT_SERVICE_FULL:  "service_full",
	gateCounterCOUNT_IDLE_EVICTED:  "idle_evicted",
	gateCounterCOUNT_PODS_TO_GATES: "pods_to_gates",
	gateCounterCOUNT_FLOODED_SYNS:  "flooded_syns",
	gateCounterCOUNT_FLOODED_ACKS:  "flooded_acks",
	gateCounterCOUNT_BAD_CHECKSUM:  "bad_checksum",
	gateCounterCOUNT_BAD_SOURCE:    "bad_source",
	gateCounterCOUNT_CHALLENGES:    "challenges",
	gateCounterCOUNT_PROVEN:        "proven",
	gateCounterCOUNT_UNPROVEN:      "unproven",
	gateCounterCOUNT_OVER_BUDGET:   "over_budget",
	gateCounterCOUNT_BAD_TAG:       "bad_tag",
	gateCounterCOUNT_UNTAGGED:      "untagged",
	gateCounterCOUNT_THAWS:         "thaws",
}

// Counters returns the counters of the whole gate by name. Their meanings are those of enum counter in bpf/types.h.
func (g *Gate) Counters() (map[string]uint64, error) {
	out := make(map[string]uint64, len(counterNames))
	for i, name := range counterNames {
		var cpus []uint64
		if err := g.objs.Counters.Lookup(uint32(i), &cpus); err != nil {
			return nil, fmt.Errorf("reading the counter %s: %w", name, err)
		}
		var sum uint64
		for _, c := range cpus {
			sum += c
		}
		out[name] = sum
	}
	return out, nil
}

// Fill says how full a table of the gate is, or the largest share of one.
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

// Fills returns how full the tables are, except the flow table: see FlowUsage.
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
