// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

const (
	// frontWait bounds how long a change of pods waits for Envoy to apply it.
	frontWait = 500 * time.Millisecond
	// threadsWait bounds how long the end of a revision's pods waits for Envoy's threads.
	threadsWait = 3 * time.Second
	// frontReturns is how long after the daemon's start Envoy may take to connect. Until then the fronts of an
	// earlier daemon keep their clients.
	frontReturns = 15 * time.Second
	// shortestSilence is the least time that a request may be silent, even if the service's idle timeout is shorter.
	// Requests of a service that never sleeps may be silent for longestSilence.
	shortestSilence, longestSilence = 5 * time.Minute, time.Hour
	// frontSettles is the pause between directing the clients of all services to another Envoy and draining the
	// previous one. By then, the previous one has accepted all connections that were sent to it.
	frontSettles = 2 * time.Second
)

// fronts configures the Envoy of this node, which is the front of all services that balance requests. While one
// replaces another, there are two.
type fronts struct {
	changed chan struct{} // holds one element: services or pods have changed

	publishing sync.Mutex // held while Envoy is being configured; guards:
	server     *envoy.Server
	settled    settled

	mu      sync.Mutex      // guards what follows
	proxies []proxy         // connected, the youngest last
	ports   map[uint16]bool // in use
	next    uint16          // where the search for a free one begins
	// everywhere has the addresses of the Envoys of all nodes of a cluster.
	everywhere []netip.Addr
}

// proxy is an Envoy that is connected.
type proxy struct {
	envoy.Proxy
	network podNetwork
	gone    <-chan struct{} // closed when it is gone
}

// settled tracks since when an Envoy has had the clients of all services.
type settled struct {
	at    netip.Addr    // of the Envoy; the zero value while not all clients go there
	since monotime.Time // when they began to
}

// after returns the state after a check: all says whether the Envoy at an address has all clients.
func (s settled) after(at netip.Addr, all bool, now monotime.Time) settled {
	switch {
	case !all:
		return settled{}
	case s.at == at:
		return s
	}
	return settled{at: at, since: now}
}

// pause returns the time until the Envoy has settled; ok is false if it does not have all clients.
func (s settled) pause(now monotime.Time) (left time.Duration, ok bool) {
	return max(0, frontSettles-now.Sub(s.since)), s.at.IsValid()
}

func newFronts() fronts {
	return fronts{changed: make(chan struct{}, 1), ports: map[uint16]bool{}, next: envoy.FirstPort}
}

// notify makes runFronts configure Envoy anew.
func (f *fronts) notify() { notify(f.changed) }

// connected returns the connected Envoys, the youngest last. The youngest should serve.
func (f *fronts) connected() []proxy {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.proxies)
}

// join adds an Envoy that has connected.
func (f *fronts) join(p proxy) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proxies = slices.DeleteFunc(f.proxies, func(o proxy) bool { return o.Addr == p.Addr }) // restarted in place
	f.proxies = append(f.proxies, p)
	slices.SortStableFunc(f.proxies, func(a, b proxy) int { return a.Created.Compare(b.Created) })
}

// leave removes an Envoy that is gone. It reports whether it was connected, and how many are left.
func (f *fronts) leave(p proxy) (was bool, left int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.proxies)
	f.proxies = slices.DeleteFunc(f.proxies, func(o proxy) bool { return o.gone == p.gone })
	return len(f.proxies) < before, len(f.proxies)
}

// reach reports whether a connection from an address comes from a front.
func (f *fronts) reach(from netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.everywhere, from) ||
		slices.ContainsFunc(f.proxies, func(p proxy) bool { return p.Addr == from })
}

// allow returns the source rules of a service. The service's fronts may always connect: their clients have already
// been checked.
func (f *fronts) allow(s wire.Service) []sources.Rule {
	rules := s.Sources.Rules()
	if s.Flags&wire.FlagRequests == 0 || s.Flags&wire.FlagSources == 0 {
		return rules
	}
	rules = slices.Clone(rules)
	for _, p := range f.connected() {
		rules = append(rules, sources.Rule{Prefix: netip.PrefixFrom(p.Addr, 32), Allow: true})
	}
	return rules
}

// takePort returns a port at which nothing listens.
func (f *fronts) takePort() (uint16, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range envoy.LastPort - envoy.FirstPort + 1 {
		port := f.next
		if f.next++; f.next > envoy.LastPort {
			f.next = envoy.FirstPort
		}
		if !f.ports[port] {
			f.ports[port] = true
			return port, nil
		}
	}
	return 0, errors.New("no port is left for Envoy: connections are balanced")
}

// freePort makes a port available again.
func (f *fronts) freePort(port uint16) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ports, port)
}

// front is the listener of one Envoy for the clients of one service. The service's mu guards it.
type front struct {
	id      uint64         // in the gate
	at      netip.AddrPort // the zero value if it is not in the gate
	ifindex int            // of its device
	serving bool           // the gate gives it clients
	only    bool           // it serves as the front of a service without pods of its own
	watch   *listenWatch   // until it listens
}

// endWatch stops waiting for the front to listen. s.mu is held.
func (f *front) endWatch() {
	if f.watch != nil {
		f.watch.cancel()
		f.watch = nil
	}
}

// Pauses before an Envoy whose network was not found is tried again.
const (
	firstFrontPause   = 200 * time.Millisecond
	longestFrontPause = 30 * time.Second
)

// frontConnected makes an Envoy that has connected the front of services. It returns once Envoy may have its resources,
// or is gone.
func (d *daemon) frontConnected(ctx context.Context, p envoy.Proxy) {
	network, ok := d.locateFront(ctx, &p)
	if !ok {
		return
	}
	f := &d.fronts
	now := proxy{Proxy: p, network: network, gone: ctx.Done()}
	f.join(now)
	for _, s := range d.allServices() { // their rules have to allow it
		s.mu.Lock()
		if s.requests != nil && s.entry.Flags&wire.FlagSources != 0 {
			if err := d.writeService(s.entry); err != nil {
				d.log.Error("clients of a service that sleeps may not wake it", "service", s.name, "error", err)
			}
		}
		s.mu.Unlock()
	}
	d.log.Info("Envoy has connected: it balances requests", "address", p.Addr)
	context.AfterFunc(ctx, func() {
		was, left := f.leave(now)
		switch {
		case !was || d.ctx.Err() != nil:
		case left > 0: // it has been replaced, or the one it should have replaced stays
			d.log.Info("one of two Envoys is gone", "address", p.Addr)
			f.notify()
		default:
			d.log.Warn("Envoy is gone, or does not answer: connections are balanced until it is back")
			d.drainFronts()
		}
	})
	f.notify()
}

// locateFront repeats findFront until it succeeds: the container runtime may be away, or too busy to answer. ok is
// false if ctx has ended before that.
func (d *daemon) locateFront(ctx context.Context, p *envoy.Proxy) (_ podNetwork, ok bool) {
	for pause := time.Duration(0); ; {
		network, err := d.findFront(ctx, p)
		if err == nil {
			return network, true
		}
		if ctx.Err() != nil {
			return podNetwork{}, false
		}
		pause = backoff.Next(pause, firstFrontPause, longestFrontPause)
		d.log.Error("cannot use an Envoy; tried again", "error", err, "in", pause)
		select {
		case <-ctx.Done():
			return podNetwork{}, false
		case <-time.After(pause):
		}
	}
}

// findFront finds the network of an Envoy, in a cluster by its pod.
func (d *daemon) findFront(ctx context.Context, p *envoy.Proxy) (podNetwork, error) {
	if p.Pod == "" {
		return findNetwork(p.Netns, p.Addr)
	}
	if d.cri == nil {
		return podNetwork{}, fmt.Errorf("pod %s: this daemon asks no container runtime for its network: set --cri", p.Pod)
	}
	addr, netns, created, err := d.cri.Network(ctx, p.Pod)
	if err != nil {
		return podNetwork{}, fmt.Errorf("network of its pod: %w", err)
	}
	if addr != p.Addr {
		return podNetwork{}, fmt.Errorf("pod %s: its address is %v, and not %v", p.Pod, addr, p.Addr)
	}
	p.Netns, p.Created = netns, created
	return findNetwork(netns, addr)
}

// setFronts records the addresses of the Envoys of all nodes.
func (d *daemon) setFronts(addrs []netip.Addr) {
	if err := d.gate.SetFronts(addrs); err != nil {
		d.log.Error("cannot count what pods send to the Envoys of other nodes", "error", err)
		return
	}
	d.fronts.mu.Lock()
	defer d.fronts.mu.Unlock()
	d.fronts.everywhere = addrs
}

// drainFronts directs the clients of all services to pods again.
func (d *daemon) drainFronts() {
	for _, s := range d.allServices() {
		s.mu.Lock()
		d.drainFront(s, &s.front)
		d.drainFront(s, &s.oldFront)
		s.mu.Unlock()
	}
}
