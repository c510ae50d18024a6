// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"slices"

	"wangell.loutres.me/internal/base/monotime"
)

// timeline collects the times of one wake.
type timeline struct {
	number           uint64
	ref              Ref // the wake's pod: the one that listens first, or the first one started; 0 for none
	result           Result
	reason           string
	parked, released uint32
	at               [len(phaseNames)]monotime.Time
	recorded         uint16 // bit i: phase i was in a Record
	begun            bool   // there was a Record
}

// mark records when a phase ended, and reports whether that was news. Only the first time counts.
func (l *timeline) mark(p PhaseName, at monotime.Time) bool {
	i := phaseIndex(p)
	if i < 0 || at == 0 || l.at[i] != 0 {
		return false
	}
	l.at[i] = at
	return true
}

// restart forgets the phases of a pod that was given up, but not how the wake began.
func (l *timeline) restart() {
	l.ref = 0
	for i := phaseIndex(PhaseImage); i < len(l.at); i++ {
		l.at[i] = 0
		l.recorded &^= 1 << i
	}
}

// follow makes a pod the wake's pod.
func (l *timeline) follow(p *pod) {
	if l.ref == p.ref {
		return
	}
	l.restart()
	l.ref = p.ref
	for i, at := range p.phases {
		if l.at[i] == 0 {
			l.at[i] = at
		}
	}
}

// record makes a Record of the present waterfall.
func (l *timeline) record(service string) Record {
	r := Record{Waterfall: l.waterfall(service), First: !l.begun}
	l.begun = true
	for _, p := range r.Waterfall.Phases {
		if bit := uint16(1) << phaseIndex(p.Name); l.recorded&bit == 0 {
			l.recorded |= bit
			r.News = append(r.News, p)
		}
	}
	return r
}

// waterfall returns the present waterfall.
func (l *timeline) waterfall(service string) Waterfall {
	seen := l.at[0]
	w := Waterfall{
		Service: service, Number: l.number, Result: l.result, Reason: l.reason,
		Parked: l.parked, Released: l.released, SYNSeen: seen,
	}
	for i, at := range l.at {
		if at != 0 {
			// The clock of a daemon on another machine may be slightly behind the first one's.
			w.Phases = append(w.Phases, Phase{Name: phaseNames[i], At: max(0, at.Sub(seen))})
		}
	}
	slices.SortStableFunc(w.Phases, func(a, b Phase) int { return int(a.At - b.At) })
	for i := 1; i < len(w.Phases); i++ {
		w.Phases[i].Took = w.Phases[i].At - w.Phases[i-1].At
	}
	return w
}

// lastOf returns the phase that ended last, by its time; the first phase if none has ended.
func lastOf(at [len(phaseNames)]monotime.Time) PhaseName {
	best := 0
	for i, t := range at {
		if t != 0 && t >= at[best] {
			best = i
		}
	}
	return phaseNames[best]
}
