// SPDX-License-Identifier: Apache-2.0

package gate

import "fmt"

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
