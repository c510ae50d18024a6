// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

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

// locateFront is findFront, which it repeats until it succeeds: the container runtime may be away, or just too busy to
// answer. ok is false if ctx has ended before that.
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
