// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/monotime"
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
	p := &pod{id: b.PodID, addr: b.Addr}
	if s.pods == nil {
		s.pods = map[uint64]*pod{}
	}
	s.pods[b.PodID] = p
	d.mu.Lock()
	d.pods++
	d.mu.Unlock()
	notify(d.podAdded)
	return p, nil
}

// removePod removes a pod and its flows. s.mu is held.
func (d *daemon) removePod(s *service, p *pod) {
	d.endWatch(p)
	if err := d.gate.RemovePod(s.addr, p.id); err != nil {
		d.log.Error("cannot remove a pod", "service", s.name, "pod", p.id, "error", err)
	}
	delete(s.pods, p.id)
	d.mu.Lock()
	d.pods--
	d.mu.Unlock()
}

// sendQuiet reports how busy a draining pod still is. s.mu is held.
func (d *daemon) sendQuiet(s *service, p *pod) {
	c, err := d.gate.PodCounters(s.addr, p.id)
	if err != nil {
		d.log.Error("cannot read the counters of a pod", "service", s.name, "pod", p.id, "error", err)
		return
	}
	p.lastReported.OpenFlows = c.Open
	d.send(&wire.Quiet{
		Service: s.addr, PodID: p.id, Generation: p.drained, LastPacket: lastPacket(p, c), OpenFlows: c.Open,
	})
}
