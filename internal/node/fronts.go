// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/envoy"
	"wangell.loutres.me/internal/sources"
	"wangell.loutres.me/internal/wire"
)

const (
	// firstFrontPort and lastFrontPort are the ports at which Envoy listens for the clients of services. They are below
	// those of its own connections.
	firstFrontPort, lastFrontPort = 10000, 32000
	// frontWait bounds how long a change of pods waits for Envoy to take it over.
	frontWait = 500 * time.Millisecond
	// frontReturns is how long after the daemon's start Envoy may take to connect. Until then the fronts that an earlier
	// daemon has left keep their clients.
	frontReturns = 15 * time.Second
	// shortestSilence is the least that a request may be silent, whatever the service's idle timeout. For a service that
	// never sleeps it is longestSilence.
	shortestSilence, longestSilence = 5 * time.Minute, time.Hour
)

// fronts configures the Envoy of this node, which is the front of all services that balance requests.
type fronts struct {
	changed chan struct{} // holds one element: services or pods have changed

	publishing sync.Mutex // held while Envoy is being configured; guards:
	server     *envoy.Server

	mu    sync.Mutex // guards what follows
	proxy proxy
	ports map[uint16]bool // in use
	next  uint16          // where the search for a free one begins
	// everywhere are the addresses of the Envoys of all nodes of a cluster.
	everywhere []netip.Addr
}

// proxy is the Envoy that is connected; the zero value if there is none.
type proxy struct {
	envoy.Proxy
	network podNetwork
	gone    <-chan struct{} // closed when it is gone
}

func newFronts() fronts {
	return fronts{changed: make(chan struct{}, 1), ports: map[uint16]bool{}, next: firstFrontPort}
}

// notify makes runFronts configure Envoy anew.
func (f *fronts) notify() { notify(f.changed) }

// connected returns the Envoy that is connected; ok is false if there is none.
func (f *fronts) connected() (p proxy, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.proxy, f.proxy.gone != nil
}

// reach reports whether a connection from an address is one of a front.
func (f *fronts) reach(from netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.everywhere, from) || f.proxy.gone != nil && from == f.proxy.Addr
}

// allow returns the rules of a service for sources. The service's front may connect in any case: its clients have been
// judged.
func (f *fronts) allow(s wire.Service) []sources.Rule {
	rules := s.Sources.Rules()
	p, ok := f.connected()
	if !ok || s.Flags&wire.FlagRequests == 0 || s.Flags&wire.FlagSources == 0 {
		return rules
	}
	return append(slices.Clone(rules), sources.Rule{Prefix: netip.PrefixFrom(p.Addr, 32), Allow: true})
}

// takePort returns a port at which nothing listens.
func (f *fronts) takePort() (uint16, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range lastFrontPort - firstFrontPort + 1 {
		port := f.next
		if f.next++; f.next > lastFrontPort {
			f.next = firstFrontPort
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
			if _, ok := d.fronts.connected(); !ok {
				d.drainFronts()
			}
		case <-d.fronts.changed:
			if err := d.configureFronts(); err != nil {
				d.log.Error("cannot balance requests", "error", err)
			}
		}
	}
}

// settleFront returns once no pod that is being drained gets a new request, or Envoy does not answer.
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

// configureFronts gives Envoy the present services and pods, and services their fronts.
func (d *daemon) configureFronts() error {
	f := &d.fronts
	f.publishing.Lock()
	defer f.publishing.Unlock()
	all := d.allServices()
	slices.SortFunc(all, func(a, b *service) int { return a.addr.Compare(b.addr) })
	wanted := false
	for _, s := range all {
		s.mu.Lock()
		wanted = wanted || s.requests != nil
		s.mu.Unlock()
	}
	if !wanted && f.server == nil || !d.knowsPods(all) {
		return nil
	}
	if f.server == nil {
		server, err := envoy.Serve(envoy.Config{
			Socket: d.cfg.EnvoySocket, Owner: d.cfg.EnvoyUser, Connected: d.frontConnected,
			Requests: d.takeRequests, Log: d.log,
		})
		if err != nil {
			return err
		}
		f.server = server
	}
	p, ok := f.connected()
	if !ok {
		return nil // frontConnected comes back here
	}
	var list []envoy.Service
	var errs []error
	for _, s := range all {
		s.mu.Lock()
		if s.requests == nil {
			d.endFront(s)
		} else if e, err := d.describeFront(s, p); err != nil {
			errs = append(errs, fmt.Errorf("service %s: %w", s.name, err))
		} else {
			list = append(list, e)
		}
		s.mu.Unlock()
	}
	return errors.Join(append(errs, f.server.Set(list))...)
}

// knowsPods reports whether the controller has listed the pods of all services that balance requests. Until then Envoy
// keeps those that it has from an earlier daemon.
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

// describeFront returns a service as Envoy gets it, and makes sure that it has a front. s.mu is held.
func (d *daemon) describeFront(s *service, p proxy) (envoy.Service, error) {
	if s.front.port == 0 {
		port, err := d.fronts.takePort()
		if err != nil {
			return envoy.Service{}, err
		}
		s.front.port = port
	}
	if err := d.ensureFront(s, p); err != nil {
		return envoy.Service{}, err
	}
	silence := max(s.idle, shortestSilence)
	if s.idle == 0 {
		silence = longestSilence
	}
	e := envoy.Service{
		Name: s.name, Addr: s.addr, Listen: s.front.at, Protocol: envoy.Protocol(s.requests.Protocol),
		ClientIdle: time.Duration(s.requests.ClientIdleSeconds) * time.Second, Silence: silence,
		MaxPerPod: uint32(s.requests.MaxPerPod), Warmup: time.Duration(s.requests.WarmupSeconds) * time.Second,
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

// frontConnected makes an Envoy that has connected the front of services. It returns once Envoy may have its resources,
// or is gone.
func (d *daemon) frontConnected(ctx context.Context, p envoy.Proxy) {
	network, err := d.findFront(ctx, &p)
	if err != nil {
		d.log.Error("cannot use an Envoy", "error", err)
		<-ctx.Done()
		return
	}
	f := &d.fronts
	now := proxy{Proxy: p, network: network, gone: ctx.Done()}
	f.mu.Lock()
	f.proxy = now
	f.mu.Unlock()
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
		f.mu.Lock()
		current := f.proxy.gone == now.gone
		if current {
			f.proxy = proxy{}
		}
		f.mu.Unlock()
		if current && d.ctx.Err() == nil {
			d.log.Warn("Envoy is gone, or does not answer: connections are balanced until it is back")
			d.drainFronts()
		}
	})
	f.notify()
}

// findFront finds the network of an Envoy, in a cluster by its pod.
func (d *daemon) findFront(ctx context.Context, p *envoy.Proxy) (podNetwork, error) {
	if p.Pod == "" {
		return findNetwork(p.Netns, p.Addr)
	}
	if d.cri == nil {
		return podNetwork{}, fmt.Errorf("pod %s: this daemon asks no container runtime for its network: set --cri", p.Pod)
	}
	addr, netns, err := d.cri.Network(ctx, p.Pod)
	if err != nil {
		return podNetwork{}, fmt.Errorf("network of its pod: %w", err)
	}
	if addr != p.Addr {
		return podNetwork{}, fmt.Errorf("pod %s: its address is %v, and not %v", p.Pod, addr, p.Addr)
	}
	p.Netns = netns
	return findNetwork(netns, addr)
}

// setFronts notes where the Envoys of all nodes are.
func (d *daemon) setFronts(addrs []netip.Addr) {
	if err := d.gate.SetFronts(addrs); err != nil {
		d.log.Error("cannot count what pods send to the Envoys of other nodes", "error", err)
		return
	}
	d.fronts.mu.Lock()
	defer d.fronts.mu.Unlock()
	d.fronts.everywhere = addrs
}

// drainFronts makes pods get the clients of all services.
func (d *daemon) drainFronts() {
	for _, s := range d.allServices() {
		s.mu.Lock()
		s.front.endWatch()
		if s.front.at.IsValid() {
			d.gate.DrainFront(s.addr)
			s.front.serving = false
		}
		s.mu.Unlock()
	}
}
