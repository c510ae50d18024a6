// SPDX-License-Identifier: Apache-2.0

package controller

import "sort"

// drains are the drains on their way to all daemons, in the order of seq. They belong to the loop.
type drains struct {
	rounds []*drainRound
	known  func(*drainRound) // called when all daemons have a drain
}

// begin begins a drain with the newest publication of a service. awaited is the number of daemons that get it.
func (d *drains) begin(s *service, awaited int) *drainRound {
	r := &drainRound{service: s, seq: s.publication.seq, awaited: awaited}
	// Drains that are over or superseded stay in the list only behind one that is not.
	for len(d.rounds) > 0 && (d.rounds[0].awaited == 0 || d.rounds[0].service.round != d.rounds[0]) {
		d.rounds[0] = nil
		d.rounds = d.rounds[1:]
	}
	d.rounds = append(d.rounds, r)
	return r
}

// settle no longer waits for one daemon in drains whose seq is above from and at most upTo.
func (d *drains) settle(from, upTo uint64) {
	i := sort.Search(len(d.rounds), func(i int) bool { return d.rounds[i].seq > from })
	var over []*drainRound
	for ; i < len(d.rounds) && d.rounds[i].seq <= upTo; i++ {
		if r := d.rounds[i]; r.awaited > 0 {
			if r.awaited--; r.awaited == 0 {
				over = append(over, r)
			}
		}
	}
	for _, r := range over {
		d.known(r)
	}
}
