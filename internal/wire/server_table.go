// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"
)

// SetServices gives the whole table that daemons shall have; the server brings it to every peer, as
// differences where it can, and repairs a peer whose hash differs. Before the first call no daemon is told
// any table. At most 100,000 entries, each address once. On an error nothing is changed.
func (s *Server) SetServices(services []Service) error {
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	if err := s.table.set(services); err != nil {
		return err
	}
	s.spread()
	return nil
}

// UpdateServices changes some entries of the table; an address in both lists is kept. On an error nothing is
// changed.
func (s *Server) UpdateServices(upserts []Service, removals []netip.AddrPort) error {
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	if err := s.table.update(upserts, removals); err != nil {
		return err
	}
	s.spread()
	return nil
}

// spread brings the table to every peer. tableMu is held.
func (s *Server) spread() {
	s.mu.Lock()
	peers := make([]*peer, 0, len(s.peers))
	for _, p := range s.peers {
		peers = append(peers, p)
	}
	s.mu.Unlock()
	for _, p := range peers {
		s.bring(p)
	}
}

// bring sends a peer what it lacks of the table, right after all that was sent to it before. tableMu is held.
func (s *Server) bring(p *peer) {
	if !p.known || s.table.version == 0 || p.table == s.table.tableState {
		return
	}
	p.queued.Add(1)
	handled := func(err error) {
		if err == nil {
			p.handled.Add(1)
		}
	}
	if err := p.session.send(handled, true, s.table.step(p.table)...); errors.Is(err, ErrQueueFull) {
		s.letGo(p)
	}
	p.table = s.table.tableState
	s.counters.syncSteps.Add(1)
}

// letGo ends the session of a peer that does not keep up. It reconnects, and is told everything as it is then. No
// lock of the server's may be in the way of those who wait for the peer's answers, so it is done elsewhere.
func (s *Server) letGo(p *peer) { s.group.Go(func() { p.session.end(errSlow, goodbyeClosed) }) }

// heardTable keeps what a peer told of its table, if it had applied every step by then.
func (p *peer) heardTable(state tableState) {
	steps := p.queued.Load()
	if p.handled.Load() == steps {
		p.report.Store(&tableReport{state: state, steps: steps})
		p.session.poke()
	}
}

// compareTable repairs a peer that does not have what it was sent. It runs on the session's goroutine.
func (s *Server) compareTable(p *peer) {
	r := p.report.Swap(nil)
	if r == nil {
		return
	}
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	if p.queued.Load() != r.steps {
		return // a step went out meanwhile; the next keepalive tells
	}
	if p.known && r.state != p.table {
		s.counters.syncRepairs.Add(1)
		p.session.log.Warn("daemon has another table of services than it was sent; it gets the whole again",
			"version", r.state.version, "expected", p.table.version)
		r.state = tableState{}
	}
	p.known = true
	p.table = r.state
	s.bring(p)
}
