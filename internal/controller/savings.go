// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

// savings is how long a service has been asleep since the controller began to lead, and what one pod would have
// reserved in that time.
type savings struct {
	asleep time.Duration
	cpu    float64 // core-seconds; NaN if the service requests none
	memory float64 // byte-seconds; likewise
}

// status returns the sleep of a service with the given requests.
func (s *sleep) status(requests map[corev1.ResourceName]float64) status.Slept {
	known := func(v float64) float64 {
		if math.IsNaN(v) {
			return 0
		}
		return v
	}
	return status.Slept{
		Since: s.began, Seconds: s.past.asleep.Seconds(), CPU: known(s.past.cpu), Memory: known(s.past.memory),
		RequestCPU: known(requests[corev1.ResourceCPU]), RequestMemory: known(requests[corev1.ResourceMemory]),
	}
}

// sleep adds up the savings of a service.
type sleep struct {
	since monotime.Time // when its state became Cold; 0 while it is another one
	began time.Time     // the same by the wall clock; zero while it is another one
	past  savings       // until then
}

// newSleep returns the savings of a new service, which sleeps.
func newSleep(now monotime.Time) sleep {
	return sleep{since: now, began: now.Wall(), past: savings{cpu: math.NaN(), memory: math.NaN()}}
}

// is records that the service sleeps from now on, or is awake.
func (s *sleep) is(cold bool, now monotime.Time, requests map[corev1.ResourceName]float64) {
	s.past = s.until(now, requests)
	s.since, s.began = 0, time.Time{}
	if cold {
		s.since, s.began = now, now.Wall()
	}
}

// until returns the savings up to now, given the requests that the service has had since it fell asleep.
func (s *sleep) until(now monotime.Time, requests map[corev1.ResourceName]float64) savings {
	sum := s.past
	var last time.Duration
	if s.since != 0 {
		last = max(0, now.Sub(s.since))
	}
	sum.asleep += last
	sum.cpu = reserved(sum.cpu, requests[corev1.ResourceCPU], last)
	sum.memory = reserved(sum.memory, requests[corev1.ResourceMemory], last)
	return sum
}

// reserved adds the product of a request and a time to a sum. A request of NaN, which stands for none, adds nothing;
// a sum without any request is NaN.
func reserved(sum, request float64, d time.Duration) float64 {
	switch {
	case math.IsNaN(request):
		return sum
	case math.IsNaN(sum):
		return request * d.Seconds()
	}
	return sum + request*d.Seconds()
}

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
