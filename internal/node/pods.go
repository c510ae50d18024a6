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
	d.mu.Lock()
	d.pods++
	d.mu.Unlock()
	notify(d.maintenance)
	return p, nil
}

// removePod removes a pod and its flows. s.mu is held.
func (d *daemon) removePod(s *service, p *pod) {
	d.endWatch(p)
	p.endProbes()
	if q := d.freezing.find(p.id); q != nil {
		d.tasks.Go(func() { d.thaw(q, 0, "") })
	}
	if p.direct != nil {
		p.direct.close()
	}
	if err := d.gate.RemovePod(s.addr, p.id); err != nil {
		d.log.Error("cannot remove a pod", "service", s.name, "pod", p.id, "error", err)
	}
	delete(s.pods, p.id)
	d.mu.Lock()
	d.pods--
	d.mu.Unlock()
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
	c, err := d.gate.PodCounters(s.addr, p.id)
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
		Service: s.addr, PodID: p.id, Generation: p.drained, LastPacket: lastPacket(p, c), OpenFlows: c.Open,
	})
}
