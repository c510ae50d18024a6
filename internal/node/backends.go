// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// receive handles a message of the controller. What it asks for is done when it returns: that is what its
// acknowledgement means.
func (d *daemon) receive(m wire.Message) {
	switch m := m.(type) {
	case *wire.Backends:
		d.backends(m)
	case *wire.Refuse:
		n := d.gate.Refuse(m.Service)
		d.log.Info("parked clients refused", "address", m.Service, "clients", n, "reason", m.Reason)
	case *wire.Nodes:
		d.nodes(m)
	case *wire.Loads:
		d.loads(m)
	default:
		d.log.Warn("a message that daemons do not know", "message", m.Type())
	}
}

// backends brings the pods of a service to what the controller says.
func (d *daemon) backends(m *wire.Backends) {
	s := d.service(m.Service)
	if s == nil {
		d.log.Warn("pods of a service that is not in the table", "address", m.Service)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Generation < s.generation {
		return
	}
	s.generation = m.Generation
	wanted := make(map[uint64]bool, len(m.Pods))
	s.crowd.pods = max(int(m.Sharing), servingIn(m)) // to a gate that is new to them, those that serve may come all at once
	for _, b := range m.Pods {
		wanted[b.PodID] = true
		if err := d.backend(s, b); err != nil {
			d.log.Error("a pod cannot be served", "service", s.name, "pod", b.PodID, "error", err)
		}
	}
	meeting := d.meeting(monotime.Now())
	for id, p := range s.pods {
		if !wanted[id] && !(meeting && p.state == 0) {
			d.removePod(s, p)
		}
	}
	d.share(s)
	s.crowd.pods = int(m.Sharing)
	if s.crowd.over(s.serving(), monotime.Now()) {
		d.releaseRest(s)
	}
}

// meetFor is how long after a session's begin a pod is kept of which the controller has not told in it. One that has just
// begun to lead hears of pods from their nodes, one after the other; whoever forgot those that it does not know yet would
// cut off their connections.
const meetFor = 3 * time.Second

// meeting tells whether the controller may not know all pods yet.
func (d *daemon) meeting(now monotime.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.met != 0 && now.Sub(d.met) < meetFor
}

// forgetUntold forgets the pods of which the controller has not told since the session began.
func (d *daemon) forgetUntold(now monotime.Time) {
	d.mu.Lock()
	due := d.met != 0 && now.Sub(d.met) >= meetFor
	if due {
		d.met = 0
	}
	d.mu.Unlock()
	if !due {
		return
	}
	for _, s := range d.all() {
		s.mu.Lock()
		for _, p := range s.pods {
			if p.state == 0 && s.generation != 0 {
				d.removePod(s, p)
			}
		}
		s.mu.Unlock()
	}
}

// backend brings one pod to what the controller says. s.mu is held.
func (d *daemon) backend(s *service, b wire.Backend) error {
	p := s.pods[b.PodID]
	if p == nil {
		var err error
		if p, err = d.addPod(s, b); err != nil {
			return err
		}
	}
	p.addr, p.netns, p.home = b.Addr, b.Netns, b.Node == d.cfg.Node
	before := p.state
	p.state = b.State
	switch b.State {
	case wire.PodStarting:
		return d.starting(s, p, before)
	case wire.PodServing:
		if p.restarting {
			return nil // it is served when it listens again
		}
		d.endWatch(p)
		if !p.serving || before == wire.PodDraining {
			d.serve(s, p)
		}
		p.draining = 0
	case wire.PodDraining:
		d.endWatch(p)
		p.restarting = false
		if err := d.gate.Drain(s.addr, p.id); err != nil {
			return err
		}
		p.serving = false
		p.draining = s.generation
		if p.home {
			d.quiet(s, p)
		}
	}
	return nil
}

// starting makes a pod wait until it listens. before is what the controller said of it last, 0 if nothing in this session.
// s.mu is held.
func (d *daemon) starting(s *service, p *pod, before wire.PodState) error {
	switch {
	case p.home && p.serving:
		// Adopted, or faster than the controller: it listens already. The controller asks to hear of it.
		d.send(&wire.Listening{Service: s.addr, PodID: p.id, At: p.since})
	case p.home && p.watch == nil:
		return d.startWatch(s, p)
	case !p.home && p.serving && before == wire.PodServing:
		// Its process is started anew. (What an earlier session's controller let serve goes on: this one only does
		// not know yet.)
		if err := d.gate.Drain(s.addr, p.id); err != nil {
			return err
		}
		p.serving = false
	}
	return nil
}

// addPod makes a pod known to the gate: one of this node by its device, another by its node's address. s.mu is held.
func (d *daemon) addPod(s *service, b wire.Backend) (*pod, error) {
	add := gate.Pod{ID: b.PodID, Service: s.addr, Addr: b.Addr, Node: b.NodeAddr}
	if b.Node == d.cfg.Node {
		net, err := findNetwork(b.Netns, b.Addr.Addr())
		if err != nil {
			return nil, err
		}
		add.Node, add.Ifindex, add.MAC, add.HostMAC = netip.Addr{}, net.hostIfindex, net.mac, net.hostMAC
	} else if !b.NodeAddr.IsValid() {
		return nil, fmt.Errorf("%s: it is on node %s, whose address was not told", named(s.addr, b.PodID), b.Node)
	} else if d.members.meet(b.NodeAddr, monotime.Now()) {
		if err := d.gate.AddNode(b.NodeAddr); err != nil { // its answers come from there
			return nil, fmt.Errorf("%s: %w", named(s.addr, b.PodID), err)
		}
	}
	if err := d.gate.AddPod(add); err != nil {
		return nil, err
	}
	p := &pod{id: b.PodID, addr: b.Addr}
	if s.pods == nil {
		s.pods = map[uint64]*pod{}
	}
	s.pods[b.PodID] = p
	d.mu.Lock()
	d.pods++
	d.mu.Unlock()
	select {
	case d.changed <- struct{}{}:
	default:
	}
	return p, nil
}

// removePod forgets a pod. s.mu is held.
func (d *daemon) removePod(s *service, p *pod) {
	d.endWatch(p)
	if err := d.gate.RemovePod(s.addr, p.id); err != nil {
		d.log.Error("a pod cannot be removed", "service", s.name, "pod", p.id, "error", err)
	}
	delete(s.pods, p.id)
	d.mu.Lock()
	d.pods--
	d.mu.Unlock()
}

// serve gives a pod flows and releases what is parked. s.mu is held.
func (d *daemon) serve(s *service, p *pod) {
	leader := s.leader(p)
	n, err := d.release(s, p)
	now := monotime.Now()
	p.serving, p.since, p.restarting = true, now, false
	p.state = wire.PodServing
	s.idleTold = 0
	if p.home || n > 0 {
		p.trace.Released = now
		leader.trace.ReleasedN += uint32(n)
		d.tellTrace(s, p)
		if leader != p {
			d.tellTrace(s, leader)
		}
	}
	if err != nil {
		d.log.Error("parked SYNs cannot be released", "service", s.name, "address", s.addr, "released", n, "error", err)
	}
}

// tellTrace tells the controller what is known of a pod's wake. s.mu is held.
func (d *daemon) tellTrace(s *service, p *pod) {
	t := p.trace
	t.Service, t.PodID = s.addr, p.id
	d.send(&t)
}

// quiet tells the controller how busy a draining pod still is. s.mu is held.
func (d *daemon) quiet(s *service, p *pod) {
	c, err := d.gate.PodCounters(s.addr, p.id)
	if err != nil {
		d.log.Error("a pod's counts cannot be read", "service", s.name, "pod", p.id, "error", err)
		return
	}
	p.told.OpenFlows = c.Open
	d.send(&wire.Quiet{Service: s.addr, PodID: p.id, Generation: p.draining, LastPacket: lastPacket(p, c), OpenFlows: c.Open})
}

// lastPacket is when a pod was used last, and at least when it began to serve.
func lastPacket(p *pod, c gate.PodCounters) monotime.Time { return max(c.LastPacket, p.since) }

// named describes a pod in errors.
func named(a netip.AddrPort, id uint64) string { return fmt.Sprintf("pod %d of %v", id, a) }
