// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"
)

// While pods of many services start, none is handed over, for at most handOverCrowded.
func TestHandOverWaitsWhileManyPodsStart(t *testing.T) {
	created := time.Unix(1e9, 0)
	m := machine{uid: "d", want: 1, written: 1, direct: &direct{hash: "x", uids: map[string]bool{"a": true},
		from: restingDeployment(), first: created, last: created}}
	for _, c := range []struct {
		after   time.Duration // since the pod was created
		crowded bool
		want    time.Duration // likewise
	}{
		{0, false, handOverDelay},
		{0, true, handOverDelay},
		{handOverDelay, true, handOverDelay + crowdedPause},
		{handOverLatest, true, handOverLatest + crowdedPause},
		{handOverLatest, false, handOverDelay},
		{handOverCrowded - crowdedPause/2, true, handOverCrowded},
		{handOverCrowded, true, handOverCrowded},
	} {
		o := observation{now: created.Add(c.after), deployment: restingDeployment(), crowded: c.crowded}
		what, at := m.due(o)
		if got := at.Sub(created); what != handOverTask || got != c.want {
			t.Errorf("%v after the pod was made, crowded %t: task %d after %v, want %v", c.after, c.crowded, what, got, c.want)
		}
		if due := !at.After(o.now); due == (m.peek(o) == idle) {
			t.Errorf("%v after the pod was made, crowded %t: due %t, stage %d", c.after, c.crowded, due, m.peek(o))
		}
	}
}

// peek returns the stage that a machine would enter.
func (m machine) peek(o observation) stage {
	d := *m.direct
	m.direct = &d
	m.begin(o)
	return m.stage
}

// Many Starts, or some hand-overs, make it crowded for all services.
func TestStartsAndHandOversMakeItCrowded(t *testing.T) {
	r := &Runtime{}
	s := &service{}
	for _, c := range []struct {
		starts, handOvers int
		want              bool
	}{{0, 0, false}, {crowdedStarts - 1, mostHandOvers - 1, false}, {crowdedStarts, 0, true}, {0, mostHandOvers, true}} {
		r.starts, r.handOvers = c.starts, c.handOvers
		if got := r.observe(s, time.Unix(1e9, 0)).crowded; got != c.want {
			t.Errorf("%d starts and %d hand-overs: crowded %t", c.starts, c.handOvers, got)
		}
	}
}
