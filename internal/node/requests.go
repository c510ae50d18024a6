// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

// callerPause is the shortest time between two reports of callers of a service.
const callerPause = time.Second

// reportCaller reports the trace of a request that has waited for a pod. Only the first one of a wake is needed.
func (d *daemon) reportCaller(c envoy.Caller) {
	for _, s := range d.allServices() {
		if s.name == c.Service {
			s.reportCaller(c, monotime.Now(), d.send)
			return
		}
	}
}

func (s *service) reportCaller(c envoy.Caller, now monotime.Time, send func(wire.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.called != 0 && now.Sub(s.called) < callerPause {
		return
	}
	s.called = now
	send(&wire.Caller{
		Service: s.addr, TraceID: c.Trace.TraceID(), SpanID: c.Trace.SpanID(), Flags: uint8(c.Trace.TraceFlags()),
	})
}

// takeRequests takes what Envoy reports.
func (d *daemon) takeRequests(list []envoy.Requests) {
	now := monotime.Now()
	services := map[string]*service{}
	for _, s := range d.allServices() {
		s.mu.Lock()
		if s.requests != nil {
			services[s.name] = s
		}
		s.mu.Unlock()
	}
	for _, r := range list {
		s := services[r.Service]
		if s == nil {
			continue // it is gone, or balances connections now
		}
		s.mu.Lock()
		s.answersOf(r.Pod).add(r, now)
		s.mu.Unlock()
	}
	notify(d.maintenance)
}

// answersOf returns the answers of the pod at an address, or those without a pod if there is none there. s.mu is
// held.
func (s *service) answersOf(at netip.AddrPort) *answers {
	for _, p := range s.pods {
		if p.addr == at {
			return &p.answers
		}
	}
	return &s.answers
}

// sendAnswers reports requests that have changed.
func (d *daemon) sendAnswers(now monotime.Time) {
	var due []wire.PodAnswers
	for _, s := range d.allServices() {
		s.mu.Lock()
		if s.requests != nil {
			due = append(due, s.dueAnswers(now)...)
		}
		s.mu.Unlock()
	}
	for pods := range slices.Chunk(due, wire.MaxPodAnswers) {
		d.send(&wire.Answers{At: now, Pods: pods})
	}
}

// dueAnswers returns the requests of a service that have changed. s.mu is held.
func (s *service) dueAnswers(now monotime.Time) (due []wire.PodAnswers) {
	if a, ok := s.answers.take(s.addr, 0, now); ok {
		due = append(due, a)
	}
	for id, p := range s.pods {
		if a, ok := p.answers.take(s.addr, id, now); ok {
			due = append(due, a)
		}
	}
	return due
}
