// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// crowdWait is how long after the first pod of a wake listens what is parked is kept at most for the others that it started.
// Pods that start together listen within this time of each other, mostly; and a client's TCP sends its SYN again only after a
// second (RFC 6298).
const crowdWait = 250 * time.Millisecond

// crowd is what is parked at a service whose wake started several pods for it. It decides how much of it each pod gets. Times
// are parameters.
type crowd struct {
	pods  int           // how many pods share it; below 2: who serves first gets all
	until monotime.Time // while the rest of it is kept for other pods: when that ends; else zero
	given uint32        // how many SYNs pods have got as their shares
	first uint64        // the pod that served first
}

// share returns how many of the parked SYNs are the share of a pod that begins to serve, as the last one of so many, and
// whether those that are left then are to be released to whoever serves.
func (c *crowd) share(pod uint64, parked uint32, serving int, now monotime.Time) (n uint32, rest bool) {
	if c.until == 0 && serving == 1 {
		c.given, c.first = 0, pod
	} else if now >= c.until {
		c.until = 0
		return 0, true
	}
	all := uint64(c.given) + uint64(parked)
	n = uint32(min((all+uint64(c.pods)-1)/uint64(c.pods), uint64(parked)))
	c.given += n
	if n == parked || serving >= c.pods {
		c.until = 0
		return n, true
	}
	if c.until == 0 {
		c.until = now.Add(crowdWait)
	}
	return n, false
}

// over tells whether what is kept is to be kept no more: all pods serve, or it was long enough.
func (c *crowd) over(serving int, now monotime.Time) bool {
	return c.until != 0 && (now >= c.until || serving > 0 && serving >= c.pods)
}

// servingIn is how many pods serve, as the controller says.
func servingIn(m *wire.Backends) int {
	n := 0
	for _, b := range m.Pods {
		if b.State == wire.PodServing {
			n++
		}
	}
	return n
}

// serving is how many pods of the service get new flows. s.mu is held.
func (s *service) serving() int {
	n := 0
	for _, p := range s.pods {
		if p.serving {
			n++
		}
	}
	return n
}

// release lets a pod serve, and gives it what is parked, or its share of that. It returns how many SYNs were released. s.mu is
// held.
func (d *daemon) release(s *service, p *pod) (int, error) {
	if s.crowd.pods < 2 {
		return d.gate.Serve(s.addr, p.id)
	}
	serving := s.serving()
	if !p.serving {
		serving++
	}
	kept := s.crowd.until != 0
	share, rest := s.crowd.share(p.id, d.gate.ServiceCounters(s.addr).ParkedNow, serving, monotime.Now())
	if !kept && s.crowd.until != 0 {
		d.watchers.Go(func() { d.keep(s) })
	}
	n, err := d.gate.ServeShare(s.addr, p.id, share)
	if err != nil || !rest {
		return n, err
	}
	others, err := d.gate.Release(s.addr)
	return n + others, err
}

// keep waits as long as SYNs are kept for other pods, or until the daemon ends, and then releases what is left.
func (d *daemon) keep(s *service) {
	select {
	case <-time.After(crowdWait):
	case <-d.ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crowd.over(s.serving(), monotime.Now()) || s.crowd.until != 0 && d.ctx.Err() != nil {
		d.releaseRest(s)
	}
}

// releaseRest releases what was kept for other pods to whoever serves. If nobody does any more, it asks for a wake. s.mu is held.
func (d *daemon) releaseRest(s *service) {
	s.crowd.until = 0
	if d.service(s.addr) != s {
		return // it was removed, and its clients were refused
	}
	if d.gate.ServiceState(s.addr) != gate.Warm {
		if d.ctx.Err() == nil && d.gate.ServiceCounters(s.addr).ParkedNow > 0 {
			d.watchers.Go(func() { d.wake(s.addr, d.gate.SYNSeen(s.addr)) })
		}
		return
	}
	n, err := d.gate.Release(s.addr)
	if err != nil {
		d.log.Error("parked SYNs cannot be released", "service", s.name, "address", s.addr, "released", n, "error", err)
	}
	if p := s.pods[s.crowd.first]; p != nil && n > 0 {
		p.trace.ReleasedN += uint32(n)
		d.tellTrace(s, p)
	}
}

// leader is the pod of which the controller is told what is released now, when another one begins to serve: the wake's waterfall
// is of the pod that served first. s.mu is held.
func (s *service) leader(p *pod) *pod {
	if first := s.pods[s.crowd.first]; first != nil && s.crowd.until != 0 {
		return first
	}
	return p
}
