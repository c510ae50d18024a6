// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// senderHold is how long packets of a node are accepted after its daemon has left the list. The node's gate keeps
// running without a daemon, and so must connections between its clients and pods elsewhere.
const senderHold = 10 * time.Minute

// tagGrace is how long packets of a node are still accepted without a tag after a list first says that both that node
// and this one tag. The node's daemon gets the same list at about the same time, and only then begins to tag.
const tagGrace = 30 * time.Second

// sender is a node whose packets are accepted.
type sender struct {
	name  string        // empty until a list has had it
	last  monotime.Time // when a list last had it
	tags  bool          // according to that list
	since monotime.Time // since when every list says that it and this node tag; 0 if the last one does not
}

// membership is the list of nodes as sent by the controller. It outlives a session: the list of the last controller
// holds until the next one has sent its own. Time is a parameter.
type membership struct {
	self netip.Addr // this node

	mu         sync.Mutex
	generation uint64      // of the list, in this session
	partial    *wire.Nodes // the pieces so far of the next list
	known      bool        // a list was complete once
	nodes      []wire.NodeInfo
	senders    map[netip.Addr]sender
}

// beginSession forgets the generation and the pieces of the previous session.
func (m *membership) beginSession() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.generation, m.partial = 0, nil
}

// add adds a piece and reports whether it completes a list.
func (m *membership) add(piece *wire.Nodes, now monotime.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if piece.Generation < m.generation {
		return false
	}
	part := m.partial
	follows := part != nil && part.Generation == piece.Generation && part.Pieces == piece.Pieces &&
		part.Piece+1 == piece.Piece
	switch {
	case piece.Piece == 0:
		m.partial = &wire.Nodes{
			Generation: piece.Generation, Pieces: piece.Pieces, Nodes: slices.Clone(piece.Nodes),
		}
	case !follows:
		m.partial = nil
		return false
	default:
		part.Piece = piece.Piece
		part.Nodes = append(part.Nodes, piece.Nodes...)
	}
	if piece.Piece+1 < piece.Pieces {
		return false
	}
	before := map[netip.Addr]monotime.Time{}
	for _, n := range m.nodes {
		s := m.senders[n.Addr]
		before[n.Addr] = s.since
		m.note(n.Addr, sender{name: n.Name, last: now, tags: s.tags}) // the old list had it until now
	}
	m.known, m.generation, m.nodes, m.partial = true, piece.Generation, usable(m.partial.Nodes), nil
	selfTags := slices.ContainsFunc(m.nodes, func(n wire.NodeInfo) bool { return n.Addr == m.self && n.Tags })
	for _, n := range m.nodes {
		s := sender{name: n.Name, last: now, tags: n.Tags}
		if n.Tags && selfTags {
			s.since = cmp.Or(before[n.Addr], now)
		}
		m.note(n.Addr, s)
	}
	maps.DeleteFunc(m.senders, func(_ netip.Addr, s sender) bool { return now.Sub(s.last) > senderHold })
	return true
}

// usable returns the nodes of a list with which the gate can exchange packets. Of nodes with the same address all tag
// if one does.
func usable(list []wire.NodeInfo) []wire.NodeInfo {
	list = slices.DeleteFunc(list, func(n wire.NodeInfo) bool { return !n.Addr.Is4() })
	tags := map[netip.Addr]bool{}
	for _, n := range list {
		tags[n.Addr] = tags[n.Addr] || n.Tags
	}
	for i := range list {
		list[i].Tags = tags[list[i].Addr]
	}
	return list
}

// note stores a sender. m.mu is held.
func (m *membership) note(addr netip.Addr, s sender) {
	if m.senders == nil {
		m.senders = map[netip.Addr]sender{}
	}
	m.senders[addr] = s
}

// accepted returns the nodes whose packets are accepted, in the order of their addresses. If the result changes with
// time alone, wait is how long until it does; otherwise it is 0.
func (m *membership) accepted(now monotime.Time) (nodes []gate.Node, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for addr, s := range m.senders {
		n := gate.Node{Addr: addr, Tags: s.tags}
		if s.since != 0 {
			left := tagGrace - now.Sub(s.since)
			n.TagsAll = left <= 0
			wait = max(wait, left)
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b gate.Node) int { return a.Addr.Compare(b.Addr) })
	return nodes, wait
}

// accept accepts packets of a node that has a pod; the list with the node may arrive later. It reports whether the node
// is new. Without an IPv4 address it never is.
func (m *membership) accept(addr netip.Addr, now monotime.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.senders[addr]; known || !addr.Is4() {
		return false
	}
	m.note(addr, sender{last: now})
	return true
}

// candidates returns the nodes among which VIPs are divided; known is false if no list was ever complete.
func (m *membership) candidates() (nodes []scored, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	nodes = make([]scored, len(m.nodes))
	for i, n := range m.nodes {
		nodes[i] = score(n.Name)
		nodes[i].addr = n.Addr
	}
	return nodes, m.known
}

// neighbors returns the other nodes of the list, and those that have left it at most senderHold ago.
func (m *membership) neighbors(now monotime.Time) (nodes []scored) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for addr, s := range m.senders {
		if addr != m.self && s.name != "" && now.Sub(s.last) <= senderHold {
			n := score(s.name)
			n.addr = addr
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// setNodes gives the gate the nodes whose packets are accepted, and again when more of them have to tag their packets.
func (d *daemon) setNodes() {
	d.nodesMu.Lock()
	defer d.nodesMu.Unlock()
	nodes, wait := d.members.accepted(monotime.Now())
	if err := d.gate.SetNodes(nodes); err != nil {
		d.log.Error("cannot update the accepted nodes: packets of other nodes may be dropped", "error", err)
	}
	if d.later != nil {
		d.later.Stop()
	}
	if d.later = nil; wait > 0 && d.ctx.Err() == nil {
		d.later = time.AfterFunc(wait, func() {
			if d.ctx.Err() == nil {
				d.setNodes()
			}
		})
	}
}

// applyTagKeys gives the gate the keys of tags, and reports that it has them.
func (d *daemon) applyTagKeys(m *wire.TagKeys) {
	keys := gate.TagKeys{First: m.First, Second: m.Second}
	for i, k := range m.Keys {
		keys.Keys[i] = gate.TagKey(k)
	}
	if err := d.gate.SetTagKeys(keys); err != nil {
		d.log.Error("cannot use the keys of tags: packets from other nodes will be dropped", "error", err)
		return
	}
	if err := d.client.SetFirst(d.firstMessages(m.First)...); err != nil {
		d.log.Error("cannot describe this node to the next controller", "error", err)
	}
	d.send(&wire.TagReady{First: m.First})
}
