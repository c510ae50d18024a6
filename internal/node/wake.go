// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"time"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// Pauses between looks at the number of parked SYNs after a wake was asked for.
const (
	firstParkedPause   = 4 * time.Millisecond
	longestParkedPause = time.Second
)

// frontPatience is how long clients of a service without pods of its own wait for an Envoy.
const frontPatience = time.Minute

// wake asks the controller for a pod of the service at a. seen is when its first SYN was parked.
func (d *daemon) wake(a netip.AddrPort, seen monotime.Time) {
	s := d.service(a)
	if s == nil {
		return
	}
	s.mu.Lock()
	s.wakes++
	seq := s.wakes
	kept, split := s.crowd.until != 0, s.splits()
	a = s.addr // it may have just changed
	s.mu.Unlock()
	if split {
		d.tasks.Go(func() { d.awaitFront(s, a, seq) })
		return
	}
	if !kept && d.gate.ServiceState(a) == gate.Warm {
		// A pod began to serve just as the gate found none.
		d.tasks.Go(func() { d.releaseParked(a) })
	}
	if d.cri != nil {
		d.cri.Hurry()
	}
	notify(d.maintenance) // maintain looks at how many SYNs are parked
	m := wire.Wake{
		Service: a, Seq: seq, SYNSeen: seen, Noticed: monotime.Now(), Parked: d.gate.ServiceCounters(a).ParkedNow,
	}
	d.send(&m)
	d.tasks.Go(func() { d.reportParked(s, m) })
}

// awaitFront refuses the clients parked at a service without pods of its own, unless an Envoy accepts them soon. seq
// is the number of the wake that they began.
func (d *daemon) awaitFront(s *service, a netip.AddrPort, seq uint64) {
	select {
	case <-d.ctx.Done():
		return
	case <-time.After(frontPatience):
	}
	s.mu.Lock()
	over := s.front.serving || !s.splits() || s.addr != a || s.wakes != seq
	name := s.name
	s.mu.Unlock()
	if over {
		return
	}
	if n := d.gate.Refuse(a); n > 0 {
		d.log.Error("clients refused: no Envoy runs on this node to route them to the revisions",
			"service", name, "address", a, "clients", n)
	}
}

// releaseParked releases what is parked at a service that is warm.
func (d *daemon) releaseParked(a netip.AddrPort) {
	if n, err := d.gate.Release(a); err != nil {
		d.log.Error("cannot release parked SYNs", "address", a, "released", n, "error", err)
	}
}

// wakeAlerts are the kinds of the alerts of the budgets of wakes.
var wakeAlerts = map[gate.WakeScope]wire.AlertKind{
	gate.WakesNode: wire.AlertNodeWakes, gate.WakesService: wire.AlertServiceWakes,
	gate.WakesSource: wire.AlertSourceWakes, gate.WakesProven: wire.AlertProvenWakes,
}

// overBudget reports that clients exceed a budget of wakes.
func (d *daemon) overBudget(e gate.Event) {
	s := d.service(e.Service)
	if s == nil {
		return
	}
	m := wire.Alert{Kind: wakeAlerts[e.Scope], Service: e.Service, Source: e.Source}
	begins := d.alerts.see(m, time.Now(), d.send)
	notify(d.maintenance) // maintain ends the alert
	if !begins {
		return
	}
	s.mu.Lock()
	name := s.name
	s.mu.Unlock()
	consequence := "clients have to prove where they are before they wake or wait for services"
	if e.Scope == gate.WakesProven {
		consequence = "connection requests to sleeping services are dropped"
	}
	d.log.Warn("a budget of wakes is spent: "+consequence, "budget", m.Kind.String(), "service", name,
		"address", e.Service, "source", e.Source)
}

// denied reports that the rules of a service refused a client.
func (d *daemon) denied(e gate.Event) {
	if s := d.service(e.Service); s != nil {
		total := d.gate.ServiceCounters(e.Service).Denied
		d.send(&wire.Denied{Service: e.Service, Total: total, Source: e.Source.Addr()})
	}
}

// reportParked sends the wake m again whenever more SYNs are parked, until none are left or another wake begins. The
// gate has an event for the first parked SYN only, and a crowd may need several pods.
func (d *daemon) reportParked(s *service, m wire.Wake) {
	for pause := time.Duration(0); ; {
		pause = backoff.Next(pause, firstParkedPause, longestParkedPause)
		select {
		case <-time.After(pause):
		case <-d.ctx.Done():
			return
		}
		s.mu.Lock()
		over := s.wakes != m.Seq
		s.mu.Unlock()
		parked := d.gate.ServiceCounters(m.Service).ParkedNow
		if over || parked == 0 || d.service(m.Service) != s {
			return
		}
		if parked > m.Parked {
			m.Parked = parked
			again := m
			d.send(&again)
		}
	}
}
