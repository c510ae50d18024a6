// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// front is Envoy's listener for the clients of one service. The service's mu guards it.
type front struct {
	port    uint16         // of the listener; 0 until one was chosen
	at      netip.AddrPort // in the gate; the zero value if it is not there
	serving bool           // the gate gives it clients
	watch   *listenWatch   // until it listens
}

// endWatch stops waiting for the front to listen. s.mu is held.
func (f *front) endWatch() {
	if f.watch != nil {
		f.watch.cancel()
		f.watch = nil
	}
}

// adoptFront takes over the front that an earlier daemon has given a service.
func (d *daemon) adoptFront(s *service) {
	at := d.gate.FrontAddr(s.addr)
	if !at.IsValid() {
		return
	}
	s.front.at, s.front.port, s.front.serving = at, at.Port(), true
	if d.cfg.EnvoySocket == "" { // requests are not balanced any more
		d.dropFront(s)
		return
	}
	d.fronts.mu.Lock()
	defer d.fronts.mu.Unlock()
	d.fronts.ports[at.Port()] = true
}

// ensureFront makes the connected Envoy the front of a service as soon as it listens. s.mu is held.
func (d *daemon) ensureFront(s *service, p proxy) error {
	at := netip.AddrPortFrom(p.Addr, s.front.port)
	if s.front.at != at {
		d.dropFront(s)
		err := d.gate.AddPod(gate.Pod{
			ID: gate.FrontID, Service: s.addr, Addr: at,
			Ifindex: p.network.hostIfindex, MAC: p.network.mac, HostMAC: p.network.hostMAC,
		})
		if err != nil {
			return err
		}
		s.front.at = at
	}
	if s.front.serving || s.front.watch != nil {
		return nil
	}
	w, err := newListenWatch(p.Netns, at)
	if err != nil {
		return fmt.Errorf("front: %w", err)
	}
	if w.cookie, err = cookieOf(w.probe.fd); err == nil && d.gate.FollowsListen() {
		err = d.gate.WatchListen(w.cookie, s.addr, gate.FrontID)
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

// frontListens makes clients go to a front that has begun to listen.
func (d *daemon) frontListens(s *service, w *listenWatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.front.watch != w {
		return
	}
	s.front.endWatch()
	if err := d.gate.ServeFront(s.addr); err != nil {
		d.log.Error("cannot balance requests", "service", s.name, "error", err)
		return
	}
	s.front.serving = true
}

// frontIsDeaf waits for a front that has stopped listening to listen again. s.mu is held.
func (d *daemon) frontIsDeaf(s *service) {
	if !s.front.serving {
		return
	}
	d.gate.DrainFront(s.addr)
	s.front.serving = false
	d.log.Warn("Envoy does not listen any more: connections are balanced until it does", "service", s.name)
	d.fronts.notify()
}

// endFront lets the front of a service that balances connections again keep its clients until they have left, and then
// removes it. s.mu is held.
func (d *daemon) endFront(s *service) {
	if !s.front.at.IsValid() {
		return
	}
	s.front.endWatch()
	d.gate.DrainFront(s.addr)
	s.front.serving = false
	if open, known := d.gate.OpenFlows(s.addr, gate.FrontID); known && open > 0 {
		time.AfterFunc(time.Second, d.fronts.notify)
		return
	}
	d.removeFront(s)
}

// removeFront removes the front of a service. s.mu is held.
func (d *daemon) removeFront(s *service) {
	d.dropFront(s)
	if s.front.port != 0 {
		d.fronts.freePort(s.front.port)
	}
	s.front = front{}
}

// dropFront removes the front of a service from the gate. s.mu is held.
func (d *daemon) dropFront(s *service) {
	s.front.endWatch()
	if !s.front.at.IsValid() {
		return
	}
	if err := d.gate.RemovePod(s.addr, gate.FrontID); err != nil {
		d.log.Error("cannot remove a front", "service", s.name, "error", err)
	}
	s.front.at, s.front.serving = netip.AddrPort{}, false
}

// isFront reports whether an address is that of a front. On one machine, only a front knows the pods' own addresses. In
// a cluster, kubelet and others connect there as well, which is no use of a pod.
func (d *daemon) isFront(addr netip.Addr) bool {
	return d.cfg.EncapPort == 0 || d.fronts.reach(addr)
}

// keptIdle is longer than Envoy keeps a connection to a pod without a request.
const keptIdle = 5 * time.Second

// countDirect adds what passes a pod behind a front beside the gate: connections of Envoy to the pod's own address. A
// connection that has been silent for longer than Envoy keeps idle ones has a request, and is use of the pod. s.mu is
// held.
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
	open, err := p.direct.countOpen(p.addr.Port(), d.isFront)
	if err != nil {
		d.log.Error("cannot count the connections of a pod", "service", s.name, "pod", p.id, "error", err)
		return
	}
	c.Open = max(c.Open, open)
	now := monotime.Now()
	if open > 0 && now.Sub(lastPacket(p, *c)) > keptIdle && s.requests.Protocol != wire.ProtocolTCP {
		c.LastPacket = now
	}
}
