// SPDX-License-Identifier: Apache-2.0

package controller

import "sort"

// drainRound is a drain on its way to all daemons. Any of them may give the pod a new flow until it has the message, so
// reports of the pod's home node on open flows and packets count only once all have it.
type drainRound struct {
	service *service
	seq     uint64 // of its publication
	awaited int    // daemons that have not handled it
}

// begin begins a drain that the newest publication of a service tells daemons. It returns nil if no daemon has to be
// waited for.
func (f *feed) begin(s *service) *drainRound {
	r := &drainRound{service: s, seq: s.publication.seq}
	for _, reader := range f.readers {
		if !reader.gone {
			r.awaited++
		}
	}
	if r.awaited == 0 {
		return nil
	}
	// Drains that are over or superseded stay in the list only behind one that is not.
	for len(f.rounds) > 0 && (f.rounds[0].awaited == 0 || f.rounds[0].service.round != f.rounds[0]) {
		f.rounds[0] = nil
		f.rounds = f.rounds[1:]
	}
	f.rounds = append(f.rounds, r)
	return r
}

// settle no longer waits for a daemon in drains whose seq is above from and at most upTo. Drains that began before the
// daemon joined do not wait for it.
func (f *feed) settle(reader *reader, from, upTo uint64) {
	from = max(from, reader.joined)
	i := sort.Search(len(f.rounds), func(i int) bool { return f.rounds[i].seq > from })
	var over []*drainRound
	for ; i < len(f.rounds) && f.rounds[i].seq <= upTo; i++ {
		if r := f.rounds[i]; r.awaited > 0 {
			if r.awaited--; r.awaited == 0 {
				over = append(over, r)
			}
		}
	}
	for _, r := range over {
		f.known(r)
	}
}
