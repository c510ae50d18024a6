// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"
)

// Fills of the flow table above which, and down to which, the sweep evicts idle flows.
const (
	fillToEvict = 0.95
	fillEvicted = 0.90
)

// idleUnit is the silence that one entry of the map `idle_flows` stands for.
const idleUnit = time.Duration(1) << gateLimitIDLE_SHIFT

// eviction says which established flows make room for new ones.
type eviction struct {
	all  time.Duration // those that were silent for longer
	some time.Duration // n of those that were silent for longer than this
	n    uint32        // 0: no eviction
}

// almostFull reports whether the flow table is, with some number of flows.
func (g *Gate) almostFull(flows uint32) bool {
	return float64(flows) >= fillToEvict*float64(g.cfg.Sizes.Flows)
}

// evictions decides which of some number of flows to evict, from what the last sweep has found.
func (g *Gate) evictions(flows uint32) eviction {
	idle := make([]uint32, len(g.idle.items))
	for i := range idle {
		idle[i] = g.idle.at(uint32(i)).Established
	}
	return evict(idle, flows-uint32(fillEvicted*float64(g.cfg.Sizes.Flows)))
}

// evict chooses the flows to evict so that, if possible, some number of them goes: those that were silent for longest.
// idle[i] is how many were silent for i idleUnits. Those of idle[0] always stay.
func evict(idle []uint32, excess uint32) eviction {
	older := uint32(0)
	for i := len(idle) - 1; i > 0; i-- {
		if older+idle[i] >= excess || i == 1 {
			return eviction{all: time.Duration(i+1) * idleUnit, some: time.Duration(i) * idleUnit, n: excess - older}
		}
		older += idle[i]
	}
	return eviction{}
}

// shareCount is a count of established flows, and how many there really are.
type shareCount struct{ is, want uint32 }

// clearFound forgets what the last sweep has found.
func clearFound(v *view[gateFlowShare]) {
	for i := range v.items {
		s := &v.items[i]
		if s.Found != 0 || s.Votes != 0 {
			s.Found, s.Votes, s.Client = 0, 0, 0
		}
	}
}

// wrongShares returns the counts that differ from what the last sweep has found.
func wrongShares(v *view[gateFlowShare]) map[uint32]shareCount {
	wrong := map[uint32]shareCount{}
	for i := range v.items {
		s := &v.items[i]
		if is := atomic.LoadUint32(&s.Open); is != s.Found {
			wrong[uint32(i)] = shareCount{is, s.Found}
		}
	}
	return wrong
}

// correctShares corrects the counts that two sweeps found equally wrong, unless they have changed since.
func correctShares(v *view[gateFlowShare], first, again map[uint32]shareCount) (fixed int) {
	for i, c := range again {
		if c == first[i] && atomic.CompareAndSwapUint32(&v.at(i).Open, c.is, c.want) {
			fixed++
		}
	}
	return fixed
}

// FlowUsage says how much of the flow table is taken, and who has the largest shares.
type FlowUsage struct {
	Flows, MaxFlows               int // all entries
	Service                       netip.AddrPort
	ServiceFlows, MaxServiceFlows int // established flows of that service
	Source                        netip.Addr
	SourceFlows, MaxSourceFlows   int // established flows of that client address
}

// Fill returns the fullest of the table and the two shares, as a part of 1.
func (u *FlowUsage) Fill() float64 {
	part := func(n, of int) float64 { return float64(n) / float64(max(of, 1)) }
	return max(part(u.Flows, u.MaxFlows), part(u.ServiceFlows, u.MaxServiceFlows), part(u.SourceFlows, u.MaxSourceFlows))
}

// FlowUsage returns the usage that the last Sweep has found; it must not run at the same time as one. The service or
// source is not valid if no flow is established.
func (g *Gate) FlowUsage(s Swept) FlowUsage {
	sizes := &g.cfg.Sizes
	u := FlowUsage{Flows: int(s.Flows), MaxFlows: int(sizes.Flows), MaxServiceFlows: int(sizes.FlowsPerService),
		MaxSourceFlows: int(sizes.FlowsPerSource)}
	if i, n := largestShare(g.serviceShares); n > 0 {
		u.Service, _ = g.services.addr(i)
		u.ServiceFlows = n
	}
	if i, n := largestShare(g.sourceShares); n > 0 {
		client := binary.NativeEndian.AppendUint32(nil, g.sourceShares.at(i).Client)
		u.Source, u.SourceFlows = netip.AddrFrom4([4]byte(client)), n
	}
	return u
}

// largestShare returns the share of which the last sweep has found most flows.
func largestShare(v *view[gateFlowShare]) (index uint32, flows int) {
	for i := range v.items {
		if n := int(v.items[i].Found); n > flows {
			index, flows = uint32(i), n
		}
	}
	return index, flows
}
