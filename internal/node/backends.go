// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// sessionGrace is how long after the start of a session the daemon keeps pods that the controller has not listed yet. A
// new leader learns of pods from their nodes one by one; removing those not yet listed would cut connections.
const sessionGrace = 3 * time.Second

// applyBackends changes the pods of a service to what the controller wants. It reports whether the service's front must
// be updated before the message counts as handled: a pod that leaves must get no new requests.
func (d *daemon) applyBackends(m *wire.Backends) (front bool) {
	s := d.service(m.Service)
	if s == nil {
		d.log.Warn("the controller sent pods of a service that is not in the table", "address", m.Service)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Generation < s.generation || s.further() {
		return false
	}
	defer d.fronts.notify()
	defer notify(d.maintenance)
	for i, port := range s.ports() {
		front = d.applyPort(port, atPort(m, i)) || front
	}
	for _, b := range m.Pods { // now that no port gives them new flows
		if p := s.pods[b.PodID]; p != nil && b.State == wire.PodDraining && p.home {
			d.settle(s, p)
		}
	}
	return front
}

// applyPort changes the pods at one port of a service to what the controller wants, as applyBackends. s.mu is held.
func (d *daemon) applyPort(s *service, m *wire.Backends) (front bool) {
	s.generation = m.Generation
	served := s.serving()
	wanted := make(map[uint64]bool, len(m.Pods))
	// Serving pods that the gate does not have yet are added one by one below, and each may take its share only.
	s.crowd.pods = max(int(m.Sharing), servingIn(m))
	for _, b := range m.Pods {
		wanted[b.PodID] = true
		if err := d.applyBackend(s, b); err != nil {
			d.log.Error("cannot serve a pod", "service", s.name, "pod", b.PodID, "error", err)
		}
	}
	grace := d.inGrace(monotime.Now())
	for id, p := range s.pods {
		if !wanted[id] && !(grace && p.state == 0) {
			d.removePod(s, p)
		}
	}
	d.noteShared(s)
	s.crowd.pods = int(m.Sharing)
	if s.crowd.over(s.serving(), monotime.Now()) {
		d.releaseRest(s)
	}
	if served > 0 {
		d.wakeForParked(s)
	}
	return s.requests != nil && s.serving() < served
}

// applyBackend changes one pod to the state that the controller wants. s.mu is held.
func (d *daemon) applyBackend(s *service, b wire.Backend) error {
	p := s.pods[b.PodID]
	if p == nil {
		var err error
		if p, err = d.addPod(s, b); err != nil {
			return err
		}
	}
	p.addr, p.netns, p.home = b.Addr, b.Netns, b.Node == d.cfg.Node
	p.probe, p.runtimeID = b.Probe, b.Runtime
	p.listened = p.listened || p.home && p.serving
	before := p.state
	p.state = b.State
	if before == 0 && p.home && !s.further() {
		d.introduce(s, p)
	}
	switch b.State {
	case wire.PodStarting:
		return d.applyStarting(s, p, before)
	case wire.PodServing:
		if p.restarting || s.unready(p.id) {
			return nil // it serves once it listens again, and is ready
		}
		d.endWatch(p)
		if !p.serving || before == wire.PodDraining {
			d.serve(s, p)
		}
		if p.home && p.probe != "" && p.probes == nil {
			d.startProbes(s, p, 0)
		}
		p.drained = 0
	case wire.PodDraining:
		d.endWatch(p)
		p.endProbes()
		p.restarting = false
		if n := s.serving(); n == 0 || n == 1 && p.serving {
			d.gate.DrainAll(s.addr)
		}
		if err := d.gate.Drain(s.addr, p.id); err != nil {
			return err
		}
		p.serving = false
		p.drained = s.generation
		if q := d.freezing.find(p.id); q != nil && q.visits != nil && !s.further() {
			d.tasks.Go(func() { d.thaw(q, 0, "") }) // kubelet does not thaw it for its stop signal
		}
	}
	return nil
}

// applyStarting makes a pod wait until it listens. before is its previous state in this session, 0 if none. s.mu is
// held.
func (d *daemon) applyStarting(s *service, p *pod, before wire.PodState) error {
	switch {
	case p.home && p.serving:
		// It was adopted, or began to listen before this message: answer that it listens.
		d.send(&wire.Listening{Service: s.addr, PodID: p.id, At: p.since})
		if p.probe != "" && p.probes == nil {
			d.startProbes(s, p, 0)
		}
	case p.home && p.probes != nil && (p.listened || s.group == nil):
		p.probes.reportUnready(d, s, p) // the controller may be another one
	case p.home && p.listened: // it waits for the readinessProbe, which the first port looks after
	case p.home && p.watch == nil:
		return d.startWatch(s, p)
	case p.home && before == 0:
		p.watch.reported = false // the controller may be another one
	case !p.home && p.serving && before == wire.PodServing:
		// Its process is being restarted. A pod that served only before this session continues to: this controller
		// has no report yet that it listens.
		if err := d.gate.Drain(s.addr, p.id); err != nil {
			return err
		}
		p.serving = false
	}
	return nil
}

// inGrace reports whether the controller may not have heard of all pods yet.
func (d *daemon) inGrace(now monotime.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessionStart != 0 && now.Sub(d.sessionStart) < sessionGrace
}

// removeUnlisted removes, once per session, the pods that the controller has not listed during the grace period.
func (d *daemon) removeUnlisted(now monotime.Time) {
	d.mu.Lock()
	due := d.sessionStart != 0 && now.Sub(d.sessionStart) >= sessionGrace
	if due {
		d.sessionStart = 0
	}
	d.mu.Unlock()
	if !due {
		return
	}
	for _, s := range d.allServices() {
		s.mu.Lock()
		for _, p := range s.pods {
			if p.state == 0 && s.generation != 0 {
				d.removePod(s, p)
			}
		}
		s.mu.Unlock()
	}
}

// addPod adds a pod to the gate: a local one by its device, another one by the address of its node. s.mu is held.
func (d *daemon) addPod(s *service, b wire.Backend) (*pod, error) {
	add := gate.Pod{ID: b.PodID, Service: s.addr, Addr: b.Addr, Node: b.NodeAddr}
	if b.Node == d.cfg.Node {
		net, err := findNetwork(b.Netns, b.Addr.Addr())
		if err != nil {
			return nil, err
		}
		add.Node, add.Ifindex, add.MAC, add.HostMAC = netip.Addr{}, net.hostIfindex, net.mac, net.hostMAC
	} else if !b.NodeAddr.IsValid() {
		return nil, fmt.Errorf("%s: the controller sent no address of its node %s", describe(s.addr, b.PodID), b.Node)
	} else if d.members.accept(b.NodeAddr, monotime.Now()) {
		if err := d.gate.AddNode(b.NodeAddr); err != nil { // its replies come from there
			return nil, fmt.Errorf("%s: %w", describe(s.addr, b.PodID), err)
		}
	}
	if err := d.gate.AddPod(add); err != nil {
		return nil, err
	}
	p := &pod{id: b.PodID, addr: b.Addr, began: time.Now()}
	if s.pods == nil {
		s.pods = map[uint64]*pod{}
	}
	s.pods[b.PodID] = p
	if !s.further() {
		d.countPods(1)
	}
	notify(d.maintenance)
	return p, nil
}

// removePod removes a pod and its flows. s.mu is held.
func (d *daemon) removePod(s *service, p *pod) {
	d.endWatch(p)
	p.endProbes()
	if q := d.freezing.find(p.id); q != nil && !s.further() {
		d.tasks.Go(func() { d.thaw(q, 0, "") })
	}
	if p.direct != nil {
		p.direct.close()
	}
	if err := d.gate.RemovePod(s.addr, p.id); err != nil {
		d.log.Error("cannot remove a pod", "service", s.name, "pod", p.id, "error", err)
	}
	delete(s.pods, p.id)
	if !s.further() {
		d.countPods(-1)
	}
}

// handshakeWait is how long a drained pod's handshakes may take to complete. The controller waits five seconds for the
// answer to a drain.
const handshakeWait = 3 * time.Second

// settle reports how busy a drained pod is once earlier handshakes have completed or taken too long: they do not
// count as use yet, but ending the pod now would reset their clients. s.mu is held.
func (d *daemon) settle(s *service, p *pod) {
	if p.settling {
		return
	}
	if s.requests == nil && !d.hasHandshakes(s, p) {
		d.sendQuiet(s, p)
		return
	}
	fronted := s.requests != nil
	leaves := fronted && s.requests.Leaving
	p.settling = true
	d.tasks.Go(func() {
		if fronted {
			d.settleFront()
		}
		if leaves {
			d.settleThreads()
		}
		deadline := time.Now().Add(handshakeWait)
		for {
			select {
			case <-d.ctx.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			s.mu.Lock()
			if s.pods[p.id] == p && p.state == wire.PodDraining && time.Now().Before(deadline) && d.hasHandshakes(s, p) {
				s.mu.Unlock()
				continue
			}
			p.settling = false
			if s.pods[p.id] == p && p.state == wire.PodDraining {
				d.sendQuiet(s, p)
			}
			s.mu.Unlock()
			return
		}
	})
}

// hasHandshakes reports whether a pod has half-open flows. s.mu is held.
func (d *daemon) hasHandshakes(s *service, p *pod) bool {
	c, err := d.podCounters(s, p.id)
	return err == nil && c.HalfOpen > 0
}

// sendQuiet reports how busy a draining pod still is. s.mu is held.
func (d *daemon) sendQuiet(s *service, p *pod) {
	c, err := d.counters(s, p)
	if err != nil {
		d.log.Error("cannot read the counters of a pod", "service", s.name, "pod", p.id, "error", err)
		return
	}
	d.countDirect(s, p, &c)
	p.lastReported.OpenFlows = c.Open
	d.send(&wire.Quiet{
		Service: s.addr, PodID: p.id, Generation: p.drained, LastPacket: s.lastPacket(p.id, c), OpenFlows: c.Open,
	})
}
