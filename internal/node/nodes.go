// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// senderHold is how long at least the packets of a node are taken after its daemon was heard of no more: its gate goes on
// without a daemon, and connections between its clients and pods elsewhere must, too.
const senderHold = 10 * time.Minute

// membership is which nodes there are, as the controller told. It outlives a session: until the next controller has told
// its own, the last one's holds.
type membership struct {
	mu         sync.Mutex
	generation uint64      // in this session
	half       *wire.Nodes // the pieces so far
	known      bool        // nodes were told, ever
	nodes      []wire.NodeInfo
	senders    map[netip.Addr]monotime.Time // nodes that are there or were, and when a list had them last
}

// begin begins a session.
func (m *membership) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.generation, m.half = 0, nil
}

// add takes a piece; it is true if that completes the list.
func (m *membership) add(piece *wire.Nodes, now monotime.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if piece.Generation < m.generation {
		return false
	}
	switch {
	case piece.Piece == 0:
		m.half = &wire.Nodes{Generation: piece.Generation, Pieces: piece.Pieces, Nodes: slices.Clone(piece.Nodes)}
	case m.half == nil || m.half.Generation != piece.Generation || m.half.Pieces != piece.Pieces || m.half.Piece+1 != piece.Piece:
		m.half = nil
		return false
	default:
		m.half.Piece = piece.Piece
		m.half.Nodes = append(m.half.Nodes, piece.Nodes...)
	}
	if piece.Piece+1 < piece.Pieces {
		return false
	}
	if m.senders == nil {
		m.senders = map[netip.Addr]monotime.Time{}
	}
	for _, n := range m.nodes {
		m.senders[n.Addr] = now // until now it was there
	}
	m.known, m.generation, m.nodes, m.half = true, piece.Generation, m.half.Nodes, nil
	for _, n := range m.nodes {
		m.senders[n.Addr] = now
	}
	maps.DeleteFunc(m.senders, func(_ netip.Addr, last monotime.Time) bool { return now.Sub(last) > senderHold })
	return true
}

// accepted returns the nodes whose packets are to be taken.
func (m *membership) accepted() []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.senders), netip.Addr.Compare)
}

// meet accepts a node that has a pod: the list that has it may come later. It is true if that is new.
func (m *membership) meet(addr netip.Addr, now monotime.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.senders[addr]; known {
		return false
	}
	if m.senders == nil {
		m.senders = map[netip.Addr]monotime.Time{}
	}
	m.senders[addr] = now
	return true
}

// list returns the nodes; false if none were ever told.
func (m *membership) list() ([]wire.NodeInfo, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nodes, m.known
}

// nodes takes which nodes there are: their packets are taken, and VIPs are spread over them.
func (d *daemon) nodes(m *wire.Nodes) {
	if !d.members.add(m, monotime.Now()) {
		return
	}
	if err := d.gate.SetNodes(d.members.accepted()); err != nil {
		d.log.Error("packets of other nodes may be dropped", "error", err)
	}
	d.announce()
}

// setAnnounce notes whether the VIP of a service is to be announced because of it. If that makes a difference, the VIP is
// added to vips. s.mu is held.
func (d *daemon) setAnnounce(s *service, announce bool, vips map[netip.Addr]bool) {
	if s.announce == announce {
		return
	}
	s.announce = announce
	vip, by := s.addr.Addr(), 1
	if !announce {
		by = -1
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.vips[vip]
	if d.vips[vip] = before + by; before+by == 0 {
		delete(d.vips, vip)
	}
	if before == 0 || before+by == 0 {
		vips[vip] = true
	}
}

// announce makes the gate answer ARP for this node's share of the VIPs. On one machine, and until the nodes are known,
// the gate does as it did.
func (d *daemon) announce() {
	nodes, known := d.sharers()
	if !known {
		return
	}
	d.mu.Lock()
	vips := slices.Collect(maps.Keys(d.vips))
	d.mu.Unlock()
	mine := slices.DeleteFunc(vips, func(vip netip.Addr) bool { return owner(vip, nodes) != d.cfg.Node })
	if err := d.gate.Announce(false, mine); err != nil {
		d.log.Error("ARP requests for service addresses may go unanswered", "error", err)
	}
}

// announceSome is announce for VIPs of which services came or went: with ten thousand services the others cost too much.
func (d *daemon) announceSome(vips map[netip.Addr]bool) {
	nodes, known := d.sharers()
	if !known {
		return
	}
	for vip := range vips {
		d.mu.Lock()
		wanted := d.vips[vip] > 0
		d.mu.Unlock()
		if err := d.gate.AnnounceVIP(vip, wanted && owner(vip, nodes) == d.cfg.Node); err != nil {
			d.log.Error("ARP requests for a service address may go unanswered", "address", vip, "error", err)
		}
	}
}

// sharers returns the nodes that share out the VIPs; false if they are not known yet.
func (d *daemon) sharers() ([]scored, bool) {
	nodes, known := d.members.list()
	out := make([]scored, len(nodes))
	for i, n := range nodes {
		out[i] = score(n.Name)
	}
	return out, known
}
