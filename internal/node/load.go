// SPDX-License-Identifier: Apache-2.0

package node

import "slices"

const (
	// loadAgain is the number of unchanged readings after which a load is reported once more: the message may have been
	// lost, or an edge node's own flows may have changed while it was in flight.
	loadAgain = 5
	// loadReadings is the number of readings of its own flows that an edge node keeps.
	loadReadings = 3
)

// reportedLoad is the number of a pod's open flows that the controller has been sent in this session.
type reportedLoad struct {
	known     bool
	open      uint32
	unchanged int // readings since the report
}

// due reports whether a reading must be sent, and records it as sent.
func (r *reportedLoad) due(open uint32) bool {
	if !r.known || r.open != open {
		*r = reportedLoad{known: true, open: open}
		return true
	}
	if r.unchanged < loadAgain {
		r.unchanged++
		return r.unchanged == loadAgain
	}
	return false
}

// readings are the last numbers of flows that a pod on another node has from this node.
type readings struct {
	open [loadReadings]uint32
	next int
}

func (r *readings) add(open uint32) {
	r.open[r.next] = open
	r.next = (r.next + 1) % loadReadings
}

// others returns the number of a pod's flows that come from other edge nodes, given the home node's total and this
// node's own number. The total is older than own. Flows of this node that were closed since must not count as others',
// or a single edge node would not balance exactly; so the highest recent reading is subtracted. What this hides shows
// when the home node reports the total once more.
func (r *readings) others(total, own uint32) uint32 {
	return total - min(total, max(own, slices.Max(r.open[:])))
}
