// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "sync"

// RingSize is the number of wakes that a Ring keeps, over all services.
const RingSize = 100

// Ring keeps the waterfalls of the most recent wakes. It is safe for concurrent use.
type Ring struct {
	mu    sync.Mutex
	wakes []Waterfall // oldest first
}

// Put adds the waterfall of a Record if it is the first of its wake, and replaces the kept one otherwise. News of a
// wake that is no longer kept are dropped.
func (r *Ring) Put(rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.First {
		if len(r.wakes) == RingSize {
			copy(r.wakes, r.wakes[1:])
			r.wakes = r.wakes[:RingSize-1]
		}
		r.wakes = append(r.wakes, rec.Waterfall)
		return
	}
	for i := len(r.wakes) - 1; i >= 0; i-- {
		if old := &r.wakes[i]; old.Service == rec.Waterfall.Service && old.Number == rec.Waterfall.Number {
			start := old.Start
			*old = rec.Waterfall
			if old.Start.IsZero() {
				old.Start = start
			}
			return
		}
	}
}

// Wakes returns the kept waterfalls of a service ("namespace/name"), or of all services if it is empty, oldest first.
func (r *Ring) Wakes(service string) []Waterfall {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Waterfall
	for _, w := range r.wakes {
		if service == "" || w.Service == service {
			out = append(out, w)
		}
	}
	return out
}
