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

// openFor is how long a count of open requests is valid. Envoy does not report pods without requests.
const openFor = 3 * envoy.ReportInterval

// answers counts the requests that this node's Envoy sent to a pod, or, per service, those that reached no pod.
type answers struct {
	total wire.PodAnswers          // since the daemon's start
	open  map[netip.Addr]openCount // by the address of the Envoy that has reported it: total.Open is the sum
	due   int                      // how often they must still be sent to the controller
}

// openCount is a count of open requests.
type openCount struct {
	n  uint32
	at monotime.Time // when it was reported
}

// sendTwice is how often a change is sent: the first message may be lost.
const sendTwice = 2

// add adds what Envoy reports.
func (a *answers) add(r envoy.Requests, now monotime.Time) {
	before := a.total
	a.total.Started += r.Started
	for class, n := range r.Answered {
		a.total.Answered[class] += n
	}
	if r.Open != nil {
		if a.open == nil {
			a.open = map[netip.Addr]openCount{}
		}
		a.open[r.From] = openCount{n: *r.Open, at: now}
	}
	a.sumOpen(now)
	if a.total != before {
		a.due = sendTwice
	}
}

// sumOpen adds up the open requests that were reported lately.
func (a *answers) sumOpen(now monotime.Time) {
	a.total.Open = 0
	for from, o := range a.open {
		if now.Sub(o.at) > openFor {
			delete(a.open, from)
		} else {
			a.total.Open += o.n
		}
	}
}

// take returns the report to send now; ok is false if there is none.
func (a *answers) take(service netip.AddrPort, pod uint64, now monotime.Time) (total wire.PodAnswers, ok bool) {
	before := a.total.Open
	if a.sumOpen(now); a.total.Open != before {
		a.due = sendTwice
	}
	if a.due == 0 {
		return total, false
	}
	a.due--
	total = a.total
	total.Service, total.PodID = service, pod
	return total, true
}

// sendAgain schedules the counts for a new controller, if there are any.
func (a *answers) sendAgain() {
	if a.total != (wire.PodAnswers{}) {
		a.due = sendTwice
	}
}

// callerPause is the shortest time between two reports of callers of a service.
const callerPause = time.Second

// reportCaller reports the trace of a request that has waited for a pod. One report per wake is enough.
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

// answersOf returns the answers of the pod at an address, or the service's answers without a pod if no pod is there.
// s.mu is held.
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
