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

// senderHold is how long packets of a node are accepted after its daemon has left the list. The node's gate keeps
// running without a daemon, and so must connections between its clients and pods elsewhere.
const senderHold = 10 * time.Minute

// membership is the list of nodes as sent by the controller. It outlives a session: the list of the last controller
// holds until the next one has sent its own. Time is a parameter.
type membership struct {
	mu         sync.Mutex
	generation uint64      // of the list, in this session
	partial    *wire.Nodes // the pieces so far of the next list
	known      bool        // a list was complete once
	nodes      []wire.NodeInfo
	senders    map[netip.Addr]monotime.Time // nodes whose packets are accepted, and when a list last had them
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
	if m.senders == nil {
		m.senders = map[netip.Addr]monotime.Time{}
	}
	for _, n := range m.nodes {
		m.senders[n.Addr] = now // the old list had it until now
	}
	m.known, m.generation, m.nodes, m.partial = true, piece.Generation, m.partial.Nodes, nil
	for _, n := range m.nodes {
		m.senders[n.Addr] = now
	}
	maps.DeleteFunc(m.senders, func(_ netip.Addr, last monotime.Time) bool { return now.Sub(last) > senderHold })
	return true
}

// accepted returns the addresses of the nodes whose packets are accepted, in order.
func (m *membership) accepted() []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.senders), netip.Addr.Compare)
}

// accept accepts packets of a node with a pod; the list with the node may arrive later. It reports whether the node is
// new.
func (m *membership) accept(addr netip.Addr, now monotime.Time) bool {
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

// candidates returns the nodes among which VIPs are divided; known is false if no list was ever complete.
func (m *membership) candidates() (nodes []scored, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	nodes = make([]scored, len(m.nodes))
	for i, n := range m.nodes {
		nodes[i] = score(n.Name)
	}
	return nodes, m.known
}
