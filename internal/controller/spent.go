// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
)

// spent adds up the time that a service has been in each state.
type spent struct {
	state lifecycle.State
	since monotime.Time
	past  map[lifecycle.State]time.Duration // without the present state
}

// enter records that a service is in a state from now on.
func (s *spent) enter(state lifecycle.State, now monotime.Time) {
	if s.past == nil {
		s.past = map[lifecycle.State]time.Duration{}
	}
	s.past[s.state] += now.Sub(s.since)
	s.state, s.since = state, now
}

// until returns the time spent in each state up to now.
func (s *spent) until(now monotime.Time) map[lifecycle.State]time.Duration {
	all := map[lifecycle.State]time.Duration{s.state: now.Sub(s.since)}
	for state, d := range s.past {
		all[state] += d
	}
	return all
}
