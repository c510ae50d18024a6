// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"net/netip"
	"slices"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/gate"
)

// frontNodes is how many other nodes may have announced a VIP lately: as many nodes can come or go at once without a
// connection to an Envoy being forgotten. It is a limit as the gate has two entries for each.
const frontNodes = 3

// formerOwners returns the nodes, of others, that own a VIP if this one does not: they may have announced it until now,
// as far as the list of nodes is the only reason why it has moved. They are in the order of their scores.
func formerOwners(vip netip.Addr, others []scored) []scored {
	b := vip.As16()
	key := placement.Sum(b[:])
	slices.SortFunc(others, func(a, b scored) int {
		return cmp.Or(cmp.Compare(placement.Mix(b.hash^key), placement.Mix(a.hash^key)), cmp.Compare(a.name, b.name))
	})
	return others[:min(len(others), frontNodes)]
}

// reachFronts gives the gate the fronts of a service on the nodes that may have announced its VIP before this one: the
// connections of clients that came there go on through this node. It removes those of other nodes, unless connections
// to them are open. s.mu is held.
func (d *daemon) reachFronts(s *service) {
	if !s.mayHaveFronts() {
		return
	}
	if nodes, known := d.members.candidates(); known { // otherwise those that an earlier daemon has added stay
		d.reachFrontsOf(s, nodes, d.members.neighbors(monotime.Now()))
	}
}

// mayHaveFronts reports whether a service has fronts, or the gate may still have some of other nodes. s.mu is held.
func (s *service) mayHaveFronts() bool { return s.requests != nil || len(s.elsewhere) > 0 }

// reachFrontsOf is reachFronts for a service that may have fronts, given the nodes that may announce VIPs, and the
// others that may have done so. s.mu is held.
func (d *daemon) reachFrontsOf(s *service, nodes, others []scored) {
	wanted := map[uint64]netip.Addr{}
	if s.requests != nil && !d.cfg.NoARP && owner(s.addr.Addr(), nodes).name == d.cfg.Node {
		for _, n := range formerOwners(s.addr.Addr(), slices.Clone(others)) {
			for _, id := range gate.FrontIDs(n.addr) {
				wanted[id] = n.addr
			}
		}
	}
	for id, node := range wanted {
		if slices.Contains(s.elsewhere, id) {
			continue
		}
		p := gate.Pod{ID: id, Service: s.addr, Addr: netip.AddrPortFrom(node, s.addr.Port()), Node: node}
		if err := d.gate.AddPod(p); err != nil {
			d.log.Warn("connections to the Envoy of another node end, as their address has moved here",
				"service", s.name, "node", node, "error", err)
			continue
		}
		d.gate.DrainFront(s.addr, id)
		s.elsewhere = append(s.elsewhere, id)
	}
	d.leaveFronts(s, wanted)
}

// leaveFronts removes the fronts of a service on other nodes from the gate, except for those in wanted, and while the
// service balances requests, for those with open connections. s.mu is held.
func (d *daemon) leaveFronts(s *service, wanted map[uint64]netip.Addr) {
	var open map[uint64]uint32
	s.elsewhere = slices.DeleteFunc(s.elsewhere, func(id uint64) bool {
		if _, ok := wanted[id]; ok {
			return false
		}
		if open == nil {
			open = d.gate.FrontsElsewhere(s.addr)
		}
		if s.requests != nil && open[id] > 0 {
			return false
		}
		if err := d.gate.RemovePod(s.addr, id); err != nil {
			d.log.Error("cannot remove a front of another node", "service", s.name, "error", err)
		}
		return true
	})
}
