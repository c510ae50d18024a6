// SPDX-License-Identifier: Apache-2.0

package wire

// Peers returns the connected daemons, in no particular order.
func (s *Server) Peers() []Peer {
	peers := s.allPeers()
	out := make([]Peer, len(peers))
	for i, p := range peers {
		out[i] = p.Peer
	}
	return out
}

// allPeers returns all peers, in no particular order.
func (s *Server) allPeers() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*peer, 0, len(s.peers))
	for _, p := range s.peers {
		out = append(out, p)
	}
	return out
}

// peer returns a peer by its ID, or ErrPeerGone.
func (s *Server) peer(id uint64) (*peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[id]; p != nil {
		return p, nil
	}
	return nil, ErrPeerGone
}

// forget removes a peer whose session has ended.
func (s *Server) forget(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers, p.ID)
	if s.nodes[p.Node] == p {
		delete(s.nodes, p.Node)
	}
}

// Disconnect ends the session of a peer, which then connects again. It returns at once; Left is called later.
func (s *Server) Disconnect(peerID uint64) {
	if p, err := s.peer(peerID); err == nil {
		s.disconnect(p)
	}
}

// disconnect ends the session of a peer that does not keep up. The peer reconnects and gets the present state. This
// runs on a goroutine of its own because the callbacks of unanswered messages may take locks that the caller holds.
func (s *Server) disconnect(p *peer) {
	s.group.Go(func() { p.session.end(errSlow, goodbyeClosed) })
}
