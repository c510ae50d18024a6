// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// serve makes the gate give a pod new flows, releases parked SYNs to it, and reports the release. s.mu is held.
func (d *daemon) serve(s *service, p *pod) {
	leader := s.leader(p)
	n, err := d.release(s, p)
	now := monotime.Now()
	p.serving, p.since, p.restarting, p.pause = true, now, false, 0
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
