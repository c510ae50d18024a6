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
	a = s.addr // it may just have changed
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

// awaitFront refuses the clients parked at a service without pods of its own, unless an Envoy accepts them within
// frontPatience. seq is the number of the wake that they caused.
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

// releaseParked releases the SYNs parked at a warm service.
func (d *daemon) releaseParked(a netip.AddrPort) {
	if n, err := d.gate.Release(a); err != nil {
		d.log.Error("cannot release parked SYNs", "address", a, "released", n, "error", err)
	}
}

// wakeAlerts maps wake budgets to their kinds of alert.
var wakeAlerts = map[gate.WakeScope]wire.AlertKind{
	gate.WakesNode: wire.AlertNodeWakes, gate.WakesService: wire.AlertServiceWakes,
	gate.WakesSource: wire.AlertSourceWakes, gate.WakesProven: wire.AlertProvenWakes,
}

// overBudget reports that clients exceed a wake budget.
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

// denied reports that a service's source rules refused a client.
func (d *daemon) denied(e gate.Event) {
	if s := d.service(e.Service); s != nil {
		total := d.gate.ServiceCounters(e.Service).Denied
		d.send(&wire.Denied{Service: e.Service, Total: total, Source: e.Source.Addr()})
	}
}

// reportParked sends the wake m again whenever more SYNs are parked, until none are left or another wake begins. The
// gate sends an event for the first parked SYN only, and a crowd may need several pods.
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

// serve makes the gate give a pod new flows, releases parked SYNs to it, and reports the release. s.mu is held.
func (d *daemon) serve(s *service, p *pod) {
	leader := s.leader(p)
	n, err := d.release(s, p)
	now := monotime.Now()
	p.serving, p.since, p.restarting, p.pause, p.listened = true, now, false, 0, p.home
	p.state = wire.PodServing
	s.idleReported = 0
	d.fronts.notify()
	if p.home || n > 0 {
		p.trace.Released = now
		leader.trace.ReleasedN += uint32(n)
		d.sendTrace(s, p)
		if leader != p {
			d.sendTrace(s, leader)
		}
	}
	if err != nil {
		d.log.Error("cannot release parked SYNs", "service", s.name, "address", s.addr, "released", n, "error", err)
	}
}

// release makes the gate give a pod new flows, and releases the parked SYNs, or the pod's share of them, to it. It
// returns the number of released SYNs. s.mu is held.
func (d *daemon) release(s *service, p *pod) (int, error) {
	if s.crowd.pods < 2 {
		return d.gate.Serve(s.addr, p.id)
	}
	serving := s.serving()
	if !p.serving {
		serving++
	}
	kept := s.crowd.until != 0
	parked := d.gate.ServiceCounters(s.addr).ParkedNow
	share, rest := s.crowd.share(p.id, parked, serving, monotime.Now(), d.cfg.CrowdWait)
	if !kept && s.crowd.until != 0 {
		d.tasks.Go(func() { d.releaseLater(s) })
	}
	n, err := d.gate.ServeShare(s.addr, p.id, share, s.crowd.until)
	if err != nil || !rest {
		return n, err
	}
	others, err := d.gate.Release(s.addr)
	return n + others, err
}

// releaseLater releases the kept SYNs when the time for the other pods is up or the daemon ends.
func (d *daemon) releaseLater(s *service) {
	select {
	case <-time.After(d.cfg.CrowdWait):
	case <-d.ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crowd.over(s.serving(), monotime.Now()) || s.crowd.until != 0 && d.ctx.Err() != nil {
		d.releaseRest(s)
	}
}

// releaseRest releases the kept SYNs to all serving pods. If no pod serves any more, it asks for a wake. s.mu is held.
func (d *daemon) releaseRest(s *service) {
	s.crowd.until = 0
	if d.service(s.addr) != s {
		return // the service was removed, and its clients were refused
	}
	if d.gate.ServiceState(s.addr) != gate.Warm {
		if d.ctx.Err() == nil && d.gate.ServiceCounters(s.addr).ParkedNow > 0 {
			a := s.addr
			d.tasks.Go(func() { d.wake(a, d.gate.SYNSeen(a)) })
		}
		return
	}
	n, err := d.gate.Release(s.addr)
	if err != nil {
		d.log.Error("cannot release parked SYNs", "service", s.name, "address", s.addr, "released", n, "error", err)
	}
	if p := s.pods[s.crowd.first]; p != nil && n > 0 {
		p.trace.ReleasedN += uint32(n)
		d.sendTrace(s, p)
	}
}

// crowdWait is the default of Config.CrowdWait. Pods that start together mostly listen within this time of each other,
// and it is well below the one second after which a client's TCP retransmits its SYN (RFC 6298).
const crowdWait = 250 * time.Millisecond

// crowd divides the SYNs parked at a service among the pods that its wake started. Time is a parameter.
type crowd struct {
	pods  int           // number of pods that share the SYNs; below 2, the first to serve gets all of them
	until monotime.Time // SYNs are kept for other pods until then; zero if none are kept
	given uint32        // SYNs given to pods as their shares so far
	first uint64        // ID of the pod that served first
}

// share returns the number of parked SYNs that a pod gets as it begins to serve, and whether the remaining SYNs are
// released to all serving pods at once. serving is the number of serving pods, including this one. SYNs are kept until
// now+wait at the latest.
func (c *crowd) share(
	pod uint64, parked uint32, serving int, now monotime.Time, wait time.Duration,
) (n uint32, rest bool) {
	if c.until == 0 && serving == 1 {
		c.given, c.first = 0, pod
	} else if now >= c.until {
		c.until = 0
		return 0, true
	}
	// Some SYNs may have left in another way, and the number of pods may have changed: the rest is divided among the
	// pods without a share.
	left := max(c.pods-serving, 0) + 1
	n = min(part(c.given+parked, c.pods), part(parked, left))
	c.given += n
	if n == parked || serving >= c.pods {
		c.until = 0
		return n, true
	}
	if c.until == 0 {
		c.until = now.Add(wait)
	}
	return n, false
}

// part returns one n-th of a number of SYNs, rounded up.
func part(syns uint32, n int) uint32 { return uint32((uint64(syns) + uint64(n) - 1) / uint64(n)) }

// over reports whether kept SYNs should be released now: because all pods serve, or because the time is up.
func (c *crowd) over(serving int, now monotime.Time) bool {
	return c.until != 0 && (now >= c.until || serving > 0 && serving >= c.pods)
}

// servingIn returns the number of serving pods in a message.
func servingIn(m *wire.Backends) int {
	n := 0
	for _, b := range m.Pods {
		if b.State == wire.PodServing {
			n++
		}
	}
	return n
}
