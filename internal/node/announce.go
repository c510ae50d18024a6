// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"net/netip"
	"slices"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/wire"
)

// applyNodes adds a piece of the list of nodes. A complete list decides whose packets the gate accepts and which VIPs
// this node announces.
func (d *daemon) applyNodes(m *wire.Nodes) {
	if !d.members.add(m, monotime.Now()) {
		return
	}
	d.setNodes()
	d.announceAll()
}

// setAnnounce records whether a service wants its VIP to be announced. If that changes whether the VIP is announced,
// the VIP is added to changed. s.mu is held.
func (d *daemon) setAnnounce(s *service, announce bool, changed map[netip.Addr]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.announce != announce {
		s.announce = announce
		by := 1
		if !announce {
			by = -1
		}
		d.countVIP(s.addr.Addr(), by, changed)
	}
	d.announceLeft(s, changed)
}

// countVIP changes the number of announced addresses with a VIP. d.mu is held.
func (d *daemon) countVIP(vip netip.Addr, by int, changed map[netip.Addr]bool) {
	before := d.vips[vip]
	if d.vips[vip] = before + by; before+by == 0 {
		delete(d.vips, vip)
	}
	if before == 0 || before+by == 0 {
		changed[vip] = true
	}
}

// announceAll makes the gate answer ARP for exactly the VIPs that this node owns. Before the first list of nodes, and
// always if there is only one node, the gate decides by itself. With Config.NoARP it answers for none.
func (d *daemon) announceAll() {
	nodes, known := d.members.candidates()
	if !known || d.cfg.NoARP {
		return
	}
	d.mu.Lock()
	vips := slices.Collect(maps.Keys(d.vips))
	d.mu.Unlock()
	own := slices.DeleteFunc(vips, func(vip netip.Addr) bool { return !d.announces(vip, nodes) })
	others := d.members.neighbors(monotime.Now())
	for _, s := range d.allServices() { // before clients come here
		s.mu.Lock()
		if s.mayHaveFronts() {
			d.reachFrontsOf(s, nodes, others)
		}
		s.mu.Unlock()
	}
	if err := d.gate.Announce(false, own); err != nil {
		d.log.Error("cannot announce service addresses: ARP requests may go unanswered", "error", err)
	}
}

// announces reports whether this node announces a VIP, and records the announcing node in the gate.
func (d *daemon) announces(vip netip.Addr, nodes []scored) bool {
	by := owner(vip, nodes)
	if err := d.gate.SetEdge(vip, by.addr); err != nil {
		d.log.Error("cannot record which node announces a service address: replies may leave by its previous node",
			"address", vip, "error", err)
	}
	return by.name == d.cfg.Node
}

// announceChanged is announceAll for the VIPs in changed only: with ten thousand services, the others would cost too
// much.
func (d *daemon) announceChanged(changed map[netip.Addr]bool) {
	nodes, known := d.members.candidates()
	if !known || d.cfg.NoARP {
		return
	}
	for vip := range changed {
		d.mu.Lock()
		wanted := d.vips[vip] > 0
		d.mu.Unlock()
		if err := d.gate.AnnounceVIP(vip, wanted && d.announces(vip, nodes)); err != nil {
			d.log.Error("cannot announce a service address: ARP requests may go unanswered",
				"address", vip, "error", err)
		}
	}
}

// announceLeft makes a node answer ARP for the addresses that a service has left, as for its own. See setAnnounce for
// changed. d.mu is held.
func (d *daemon) announceLeft(s *service, changed map[netip.Addr]bool) {
	for _, a := range d.leftBy(s) {
		if l := d.left[a]; s.announce && !l.announce {
			l.announce = true
			d.countVIP(a.Addr(), 1, changed)
		}
	}
}

// owner returns the node that answers ARP for a VIP: the one with the highest score (rendezvous hashing).
// All nodes with the same list agree, VIPs are divided evenly, and when a node leaves, only its VIPs move.
// docs/protocol/nodes.md specifies the score, because nodes of different versions must agree. Without nodes, the
// result is empty.
func owner(vip netip.Addr, nodes []scored) scored {
	b := vip.As16()
	key := placement.Sum(b[:])
	best, most := scored{}, uint64(0)
	for _, n := range nodes {
		if s := placement.Mix(n.hash ^ key); best.name == "" || s > most || s == most && n.name < best.name {
			best, most = n, s
		}
	}
	return best
}

// scored is a node with the hash of its name.
type scored struct {
	name string
	addr netip.Addr // not set by score
	hash uint64
}

// score hashes a node's name.
func score(name string) scored {
	return scored{name: name, hash: placement.Mix(placement.Sum([]byte(name)))}
}
