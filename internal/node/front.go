// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

// adoptFronts takes over a service's fronts from an earlier daemon.
func (d *daemon) adoptFronts(s *service) {
	for _, known := range d.gate.Fronts(s.addr) {
		f := front{id: known.ID, at: known.Addr, serving: known.Serving, only: known.Only}
		s.frontPort = known.Addr.Port()
		if f.only {
			s.router.adopt()
		}
		if !s.front.at.IsValid() {
			s.front = f
		} else if s.oldFront = f; f.serving {
			s.front, s.oldFront = s.oldFront, s.front
		}
	}
	s.elsewhere = slices.Collect(maps.Keys(d.gate.FrontsElsewhere(s.addr)))
	switch {
	case s.frontPort == 0:
	case d.cfg.EnvoySocket == "": // requests are not balanced any more
		d.removeFronts(s)
	default:
		d.fronts.mu.Lock()
		defer d.fronts.mu.Unlock()
		d.fronts.ports[s.frontPort] = true
	}
}

// ensureFront makes an Envoy the front of a service as soon as it listens. Until then, the previous front serves.
// s.mu is held.
func (d *daemon) ensureFront(s *service, p proxy) error {
	if at := netip.AddrPortFrom(p.Addr, s.frontPort); s.front.at != at {
		if err := d.replaceFront(s, p, at); err != nil {
			return err
		}
	}
	if s.front.serving || s.front.watch != nil {
		return nil
	}
	w, err := newListenWatch(p.Netns, s.front.at)
	if err != nil {
		return fmt.Errorf("front: %w", err)
	}
	if w.cookie, err = cookieOf(w.probe.fd); err == nil && d.gate.FollowsListen() {
		err = d.gate.WatchListen(w.cookie, s.addr, s.front.id)
	}
	if err != nil {
		w.close()
		return fmt.Errorf("front: %w", err)
	}
	ctx, cancel := context.WithCancel(d.ctx)
	w.cancel, s.front.watch = cancel, w
	d.tasks.Go(func() {
		defer w.close()
		if _, ok := w.wait(ctx, d.gate.FollowsListen()); ok {
			d.frontListens(s, w)
		}
	})
	return nil
}

// replaceFront makes an Envoy's listener s.front, and the previous one s.oldFront. s.mu is held.
func (d *daemon) replaceFront(s *service, p proxy, at netip.AddrPort) error {
	s.front.endWatch()
	if s.oldFront.at == at { // the younger Envoy is gone
		s.front, s.oldFront = s.oldFront, s.front
		return nil
	}
	// There are at most two. One that never had clients is dropped first.
	if s.oldFront.at.IsValid() && !s.front.serving {
		d.dropFront(s, &s.front)
	} else {
		d.dropFront(s, &s.oldFront)
		s.front, s.oldFront = front{}, s.front
	}
	ids := gate.FrontIDs(d.cfg.NodeAddr)
	next := front{id: ids[0], at: at, ifindex: p.network.hostIfindex}
	if s.oldFront.id == next.id {
		next.id = ids[1]
	}
	err := d.gate.AddPod(gate.Pod{
		ID: next.id, Service: s.addr, Addr: at,
		Ifindex: p.network.hostIfindex, MAC: p.network.mac, HostMAC: p.network.hostMAC,
	})
	if err == nil {
		s.front = next
	}
	return err
}

// frontListens directs clients to a front that has begun to listen.
func (d *daemon) frontListens(s *service, w *listenWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.front.watch != w {
		return
	}
	s.front.endWatch()
	serve := d.gate.ServeFront
	if s.front.only = s.splits(); s.front.only {
		serve = d.serveOnlyFront
	}
	if err := serve(s.addr, s.front.id); err != nil {
		d.log.Error("cannot balance requests", "service", s.name, "error", err)
		return
	}
	s.front.serving, s.oldFront.serving = true, false
	if s.oldFront.at.IsValid() {
		d.fronts.notify()
	}
}

// serveOnlyFront directs all clients of a service without pods to its front, including those that wait.
func (d *daemon) serveOnlyFront(a netip.AddrPort, id uint64) error {
	_, err := d.gate.ServeOnlyFront(a, id)
	return err
}

// frontIsDeaf waits for a front that has stopped listening to listen again. s.mu is held.
func (d *daemon) frontIsDeaf(s *service, id uint64) {
	f := &s.front
	if s.oldFront.at.IsValid() && s.oldFront.id == id {
		f = &s.oldFront
	}
	if !f.serving {
		return
	}
	d.drainFront(s, f)
	d.log.Warn("Envoy does not listen any more: "+s.withoutFront()+" until it does", "service", s.name)
	d.fronts.notify()
}

// withoutFront describes what happens to the clients of a service while there is no Envoy. s.mu is held.
func (s *service) withoutFront() string {
	if s.splits() {
		return "clients wait"
	}
	return "connections are balanced"
}

// drainFront stops new clients for a front. s.mu is held.
func (d *daemon) drainFront(s *service, f *front) {
	f.endWatch()
	if f.at.IsValid() {
		d.gate.DrainFront(s.addr, f.id)
		f.serving = false
	}
}

// isLeft reports whether a drained front has no clients any more, or its device is gone. s.mu is held.
func (d *daemon) isLeft(s *service, f *front) bool {
	if f.ifindex != 0 {
		if _, err := net.InterfaceByIndex(f.ifindex); err != nil {
			return true
		}
	}
	c, err := d.gate.PodCounters(s.addr, f.id)
	return err != nil || c.Open+c.HalfOpen == 0
}

// frontLooks is the interval of checks whether the clients of a front have left.
const frontLooks = time.Second

// forgetOldFront removes the front that another one has replaced, once its clients have left. s.mu is held.
func (d *daemon) forgetOldFront(s *service) {
	switch {
	case !s.oldFront.at.IsValid():
	case !s.oldFront.serving && d.isLeft(s, &s.oldFront):
		d.dropFront(s, &s.oldFront)
	default:
		time.AfterFunc(frontLooks, d.fronts.notify)
	}
}

// endFronts retires the fronts of a service that balances connections again: they keep their clients, and are removed
// once the last one has left. s.mu is held.
func (d *daemon) endFronts(s *service) {
	if !s.front.at.IsValid() && !s.oldFront.at.IsValid() {
		return
	}
	for _, f := range []*front{&s.front, &s.oldFront} {
		d.drainFront(s, f)
		if f.at.IsValid() && !d.isLeft(s, f) {
			time.AfterFunc(frontLooks, d.fronts.notify)
			return
		}
	}
	d.removeFronts(s)
}

// removeFronts removes the fronts of a service. s.mu is held.
func (d *daemon) removeFronts(s *service) {
	d.dropFront(s, &s.front)
	d.dropFront(s, &s.oldFront)
	if s.frontPort != 0 {
		d.fronts.freePort(s.frontPort)
		s.frontPort = 0
	}
}

// dropFront removes a front of a service from the gate. s.mu is held.
func (d *daemon) dropFront(s *service, f *front) {
	f.endWatch()
	if f.at.IsValid() {
		if err := d.gate.RemovePod(s.addr, f.id); err != nil {
			d.log.Error("cannot remove a front", "service", s.name, "error", err)
		}
	}
	*f = front{}
}

// isFront reports whether an address belongs to a front. On one machine, only a front knows the pods' own addresses. In
// a cluster, kubelet and others connect there as well, which does not count as use.
func (d *daemon) isFront(addr netip.Addr) bool {
	return d.cfg.EncapPort == 0 || d.fronts.reach(addr)
}

// keptIdle is longer than Envoy keeps a connection to a pod without a request.
const keptIdle = 5 * time.Second

// countDirect adds connections that bypass the gate: Envoy connects to the own address of a pod behind a front. A
// connection that is silent for longer than Envoy keeps idle ones carries a request, and counts as use, unless a client
// has upgraded it. s.mu is held.
func (d *daemon) countDirect(s *service, p *pod, c *gate.PodCounters) {
	if s.requests == nil || !p.home {
		return
	}
	if p.direct == nil {
		var err error
		if p.direct, err = openSockDiag(p.netns); err != nil {
			d.log.Error("cannot count the connections of a pod", "service", s.name, "pod", p.id, "error", err)
			return
		}
	}
	peers, err := p.direct.openPeers(p.addr.Port())
	if err != nil {
		d.log.Error("cannot count the connections of a pod", "service", s.name, "pod", p.id, "error", err)
		return
	}
	open, requests := d.fromFronts(peers)
	c.Open = max(c.Open, open)
	now := monotime.Now()
	if requests > 0 && now.Sub(s.lastPacket(p.id, *c)) > keptIdle && s.requests.Protocol != wire.ProtocolTCP {
		c.LastPacket = now
	}
}

// fromFronts counts the open connections of fronts to a pod, and those among them that may carry a request.
func (d *daemon) fromFronts(peers []netip.AddrPort) (open, requests uint32) {
	for _, p := range peers {
		if !d.isFront(p.Addr()) {
			continue
		}
		open++
		if envoy.CarriesRequest(p.Port()) {
			requests++
		}
	}
	return open, requests
}
