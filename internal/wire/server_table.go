// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"
	"sync"
)

// SetServices replaces the whole table of services, at most 100,000 entries with distinct addresses. The server keeps
// the table of every peer up to date, sends differences where it can, and sends the whole table to a peer whose hash
// differs. It sends no table before the first call. On error the table is unchanged.
func (s *Server) SetServices(services []Service) error {
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	if err := s.table.set(services); err != nil {
		return err
	}
	s.waits.Store(false)
	s.sendTable()
	return nil
}

// UpdateServices changes entries of the table of services. An address in both lists is kept. On error the table is
// unchanged.
func (s *Server) UpdateServices(upserts []Service, removals []netip.AddrPort) error {
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	if err := s.table.update(upserts, removals); err != nil {
		return err
	}
	s.sendTable()
	return nil
}

// sendTable sends every peer what its table lacks. tableMu is held.
func (s *Server) sendTable() {
	for _, p := range s.allPeers() {
		s.sendStep(p)
	}
}

// maxWholeTables is the number of peers that receive the whole table at the same time. Many more would keep each other
// from receiving anything.
const maxWholeTables = 64

// admit waits while too many other peers receive their first table. It returns nil if the session ends meanwhile;
// otherwise the caller calls the result once the peer has the table.
func (s *Server) admit(p *peer) (release func()) {
	select {
	case s.admission <- struct{}{}:
		return sync.OnceFunc(func() { <-s.admission })
	case <-p.session.gone:
		return nil
	}
}

// sendStep sends a peer what its table lacks, in order with all other messages to the peer. tableMu is held.
func (s *Server) sendStep(p *peer) {
	release := p.release
	p.release = nil
	if !p.known || s.table.version == 0 || p.table == s.table.tableState {
		if release != nil {
			release()
		}
		return
	}
	p.queued.Add(1)
	handled := func(err error) {
		if release != nil {
			release()
		}
		if err == nil {
			p.handled.Add(1)
		}
	}
	step := s.table.step
	if p.keeps && p.table.hash == s.table.hash {
		step = s.table.sameAs
	}
	p.keeps = false
	if err := p.session.send(handled, true, step(p.table)...); err != nil {
		if release != nil {
			release()
		}
		if errors.Is(err, ErrQueueFull) {
			s.disconnect(p)
		}
	}
	p.table = s.table.tableState
	s.counters.syncSteps.Add(1)
}

// heardTable stores the state of the peer's table that a keepalive reports, unless a step is in flight.
func (p *peer) heardTable(state tableState) {
	steps := p.queued.Load()
	if p.handled.Load() == steps {
		keeps := state.version&tableKept != 0
		state.version &^= tableKept
		if last := p.report.Load(); last != nil && last.steps == steps {
			keeps = keeps || last.keeps // it was said before the session was live, and not looked at yet
		}
		p.report.Store(&tableReport{state: state, keeps: keeps, steps: steps})
		p.session.poke()
	}
}

// compareTable compares the reported state of the peer's table with the expected one, and sends what is missing. It
// runs on the session's goroutine.
func (s *Server) compareTable(p *peer) {
	r := p.report.Swap(nil)
	if r == nil {
		return
	}
	first := !p.admitted
	p.admitted = true
	var release func()
	if first {
		if release = s.admit(p); release == nil {
			return
		}
	}
	s.tableMu.Lock()
	defer s.tableMu.Unlock()
	p.release = release
	if p.queued.Load() != r.steps {
		if release != nil {
			release()
		}
		return // the report is older than the last step; the next keepalive has a new one
	}
	if p.known && r.state != p.table {
		s.counters.syncRepairs.Add(1)
		p.session.log.Warn("the daemon's table of services differs from what it was sent; sending all of it",
			"version", r.state.version, "expected", p.table.version)
		r.state = tableState{}
	}
	p.known, p.keeps = true, p.keeps || r.keeps
	p.table = r.state
	s.sendStep(p)
}
