// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

// configureFronts gives Envoy the present services and pods, and services their fronts.
func (d *daemon) configureFronts() error {
	f := &d.fronts
	f.publishing.Lock()
	defer f.publishing.Unlock()
	all := d.allServices()
	slices.SortFunc(all, func(a, b *service) int { return a.addr.Compare(b.addr) })
	// In a cluster, an Envoy may run that is not wanted yet. Without a server it would wait 30 s for its configuration
	// before it starts.
	wanted := d.cri != nil
	revisions := map[string]bool{} // services that can be revisions, and stay
	for _, s := range all {
		s.mu.Lock()
		wanted = wanted || s.requests != nil
		if s.requests != nil && !s.splits() && !s.requests.Leaving {
			revisions[s.name] = true
		}
		s.mu.Unlock()
	}
	if !wanted && f.server == nil || !d.knowsPods(all) {
		return nil
	}
	if f.server == nil {
		server, err := envoy.Serve(envoy.Config{
			Socket: d.cfg.EnvoySocket, Owner: d.cfg.EnvoyUser, Connected: d.frontConnected,
			Requests: d.takeRequests, Called: d.reportCaller, Log: d.log,
		})
		if err != nil {
			return err
		}
		f.server = server
	}
	proxies := f.connected()
	if len(proxies) == 0 {
		return nil // frontConnected comes back here
	}
	p := proxies[len(proxies)-1]
	f.server.Retire(p.Addr, false)
	var list []envoy.Service
	var errs []error
	moved := true
	for _, s := range all {
		s.mu.Lock()
		if s.requests == nil {
			d.endFronts(s)
		} else if s.splits() && !d.routeRevisions(s, revisions) {
			d.drainFront(s, &s.front) // clients wait
		} else if e, err := d.describeFront(s, p); err != nil {
			errs = append(errs, fmt.Errorf("service %s: %w", s.name, err))
		} else {
			list = append(list, e)
			moved = moved && s.front.serving
			d.forgetOldFront(s)
		}
		s.mu.Unlock()
	}
	d.retireFronts(proxies, moved)
	return errors.Join(append(errs, f.server.Set(list))...)
}

// retireFronts drains all Envoys but the youngest once the youngest has the clients of all services. f.publishing is
// held.
func (d *daemon) retireFronts(proxies []proxy, moved bool) {
	f, last := &d.fronts, len(proxies)-1
	now := monotime.Now()
	f.settled = f.settled.after(proxies[last].Addr, moved, now)
	pause, ok := f.settled.pause(now)
	switch {
	case !ok || last == 0:
	case pause > 0:
		time.AfterFunc(pause, f.notify)
	default:
		for _, p := range proxies[:last] {
			f.server.Retire(p.Addr, true)
		}
	}
}

// knowsPods reports whether the controller has listed the pods of all services that balance requests. Until then
// Envoy keeps the pods that an earlier daemon sent.
func (d *daemon) knowsPods(all []*service) bool {
	select {
	case <-d.tabled:
	default:
		return false
	}
	for _, s := range all {
		s.mu.Lock()
		unlisted := false
		for _, p := range s.pods {
			unlisted = unlisted || s.requests != nil && p.state == 0
		}
		s.mu.Unlock()
		if unlisted {
			return false
		}
	}
	return true
}

// routeRevisions decides where the requests of a service with traffic go, and reports whether they go anywhere.
// revisions has the services that exist. s.mu is held.
func (d *daemon) routeRevisions(s *service, revisions map[string]bool) bool {
	var again time.Duration
	s.traffic, again = s.router.route(s.requests.Traffic, revisions, monotime.Now())
	if again > 0 {
		time.AfterFunc(again, d.fronts.notify)
	} else if missing := s.router.newlyMissing(); len(missing) > 0 {
		d.log.Warn("revisions do not exist: their part of the requests goes to the others, or waits", "service", s.name,
			"revisions", missing)
	}
	return !s.traffic.Empty()
}

// describeFront returns the service for Envoy's configuration, and ensures that it has a front. s.mu is held.
func (d *daemon) describeFront(s *service, p proxy) (envoy.Service, error) {
	if s.frontPort == 0 {
		port, err := d.fronts.takePort()
		if err != nil {
			return envoy.Service{}, err
		}
		s.frontPort = port
	}
	if err := d.ensureFront(s, p); err != nil {
		return envoy.Service{}, err
	}
	silence := max(s.idle, shortestSilence)
	if s.idle == 0 {
		silence = longestSilence
	}
	e := envoy.Service{
		Name: s.name, Addr: s.addr, Port: s.frontPort, Protocol: envoy.Protocol(s.requests.Protocol),
		ClientIdle: time.Duration(s.requests.ClientIdleSeconds) * time.Second, Silence: silence,
		MaxPerPod: uint32(s.requests.MaxPerPod), Warmup: time.Duration(s.requests.WarmupSeconds) * time.Second,
	}
	e.Transparent = s.requests.Transparent
	for _, r := range s.requests.TrustedProxies.Rules() {
		e.TrustedProxies = append(e.TrustedProxies, r.Prefix)
	}
	if s.splits() {
		e.Traffic = s.traffic
		return e, nil
	}
	for _, pod := range s.pods {
		if pod.serving && pod.state == wire.PodServing && pod.addr.IsValid() {
			e.Pods = append(e.Pods, pod.addr)
		}
	}
	slices.SortFunc(e.Pods, func(a, b netip.AddrPort) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Port(), b.Port()))
	})
	return e, nil
}

// runFronts keeps Envoy configured until ctx ends.
func (d *daemon) runFronts(ctx context.Context) {
	defer func() {
		if d.fronts.server != nil {
			d.fronts.server.Close()
		}
	}()
	returns := time.NewTimer(frontReturns)
	defer returns.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-returns.C:
			if len(d.fronts.connected()) == 0 {
				d.drainFronts()
			}
		case <-d.fronts.changed:
			if err := d.configureFronts(); err != nil {
				d.log.Error("cannot balance requests", "error", err)
			}
		}
	}
}

// settleFront returns once Envoy sends draining pods no new requests, or does not answer.
func (d *daemon) settleFront() {
	if d.cfg.EnvoySocket == "" {
		return
	}
	if err := d.configureFronts(); err != nil {
		d.log.Error("cannot balance requests", "error", err)
		return
	}
	d.fronts.publishing.Lock()
	server := d.fronts.server
	d.fronts.publishing.Unlock()
	if server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, frontWait)
	defer cancel()
	if err := server.AwaitPods(ctx); err != nil && d.ctx.Err() == nil {
		d.log.Warn("Envoy does not answer: a pod may get requests after it was drained", "waited", frontWait)
	}
}

// settleThreads returns once no thread of Envoy has a route to a revision that is being removed, or Envoy does not
// answer. Call settleFront first.
func (d *daemon) settleThreads() {
	d.fronts.publishing.Lock()
	server := d.fronts.server
	d.fronts.publishing.Unlock()
	if server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, threadsWait)
	defer cancel()
	if err := server.AwaitThreads(ctx); err != nil && d.ctx.Err() == nil {
		d.log.Warn("Envoy does not answer: a revision may get requests after its end", "waited", threadsWait)
	}
}

// revisionsWait is how long a service waits for missing revisions. They may be created together with it, in any
// order.
const revisionsWait = 10 * time.Second

// revisionRouter decides where the requests of a service with traffic go while some of its revisions may not exist.
type revisionRouter struct {
	wanted  wire.Traffic  // as the table has it
	since   monotime.Time // when it came
	decided bool          // all its revisions have existed, or the wait for them is over
	last    wire.Traffic  // the traffic last returned by route; empty if none
	missing []string      // missing revisions
	told    []string      // the missing revisions that newlyMissing last returned
}

// adopt records that an earlier daemon already routes by the traffic that route gets next, so route does not wait for
// its revisions.
func (l *revisionRouter) adopt() { l.decided = true }

// route returns where requests go. A deleted revision leaves its share to the others. While one does not exist yet,
// requests go where they went before. If they may go nowhere, traffic is empty, and clients should wait. again is the
// pause after which the result may change although no service comes or goes; 0 for never.
func (l *revisionRouter) route(wanted wire.Traffic, there map[string]bool, now monotime.Time) (t envoy.Traffic,
	again time.Duration) {
	if wanted != l.wanted {
		l.decided = l.decided && l.wanted.Empty()
		l.wanted, l.since = wanted, now
	}
	some := trafficOf(wanted)
	l.missing = nil
	for _, r := range some.Revisions {
		if !there[r.Service] {
			l.missing = append(l.missing, r.Service)
		}
	}
	some = existingOnly(some, there)
	if left := revisionsWait - now.Sub(l.since); len(l.missing) == 0 || left <= 0 {
		l.decided = true
	} else if !l.decided {
		again = left
	}
	if l.decided && !some.Empty() {
		l.last = wanted
		return some, 0
	}
	return existingOnly(trafficOf(l.last), there), again
}

// newlyMissing returns the missing revisions, unless it returned the same ones last time.
func (l *revisionRouter) newlyMissing() []string {
	if slices.Equal(l.told, l.missing) {
		return nil
	}
	l.told = l.missing
	return l.missing
}

// existingOnly returns traffic without its missing revisions. It is empty if no request could go to the rest.
func existingOnly(t envoy.Traffic, there map[string]bool) envoy.Traffic {
	t.Revisions = slices.DeleteFunc(t.Revisions, func(r envoy.Revision) bool { return !there[r.Service] })
	if !slices.ContainsFunc(t.Revisions, func(r envoy.Revision) bool { return r.Percent > 0 }) {
		return envoy.Traffic{}
	}
	return t
}

// trafficOf returns traffic as Envoy gets it.
func trafficOf(t wire.Traffic) (out envoy.Traffic) {
	sticky, revisions := t.Revisions()
	switch sticky.Kind {
	case wire.StickyHeader:
		out.Sticky.Header = sticky.Name
	case wire.StickyCookie:
		out.Sticky = envoy.Sticky{Cookie: sticky.Name, MaxAge: time.Duration(sticky.MaxAgeSeconds) * time.Second}
	}
	for _, r := range revisions {
		out.Revisions = append(out.Revisions, envoy.Revision{Service: r.Service, Percent: uint32(r.Percent), Tag: r.Tag})
	}
	return out
}
