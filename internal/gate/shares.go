// SPDX-License-Identifier: Apache-2.0

package gate

import (
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

// almostFull reports whether the flow table is almost full with a number of flows.
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

// evict chooses the flows to evict, those that were silent for longest, so that their number is reached if possible.
// idle[i] is the number of flows that were silent for i idleUnits. Those of idle[0] always stay.
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

// shareCount is a recorded count of established flows, and the true one.
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

// largestShare returns the share with the most flows in the last sweep.
func largestShare(v *view[gateFlowShare]) (index, flows uint32) {
	for i := range v.items {
		if n := v.items[i].Found; n > flows {
			index, flows = uint32(i), n
		}
	}
	return index, flows
}
