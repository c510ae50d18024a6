// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// read is the goroutine that has receive handle the datagrams of a socket until it is closed. After each batch it rests
// for as long as rest says, given how many datagrams there were and how many of these were dropped.
func (s *Server) read(
	conn *net.UDPConn, done *progress, receive func([]byte, netip.AddrPort) (*session, error),
	rest func(n, dropped int) time.Duration,
) {
	in := newBatchReader(conn, serverBatch, done, s.cfg.Keepalive)
	drops := dropLog{counters: &s.counters, log: s.cfg.Log}
	var touched []*session
	for {
		n, err := in.read()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.cfg.Log.Warn("cannot read from the socket", "error", err)
			time.Sleep(dropLogGap / 100) // an unexpected error may persist and must not cause a busy loop
			continue
		}
		dropped := 0
		for i := range n {
			d, addr := in.datagram(i), in.from(i)
			s.counters.received(len(d))
			to, err := receive(d, addr)
			if err != nil {
				dropped++
				drops.dropped(err, addr)
			}
			if to != nil && !to.touched {
				to.touched, touched = true, append(touched, to)
			}
		}
		now := time.Now()
		for i, to := range touched {
			to.touched, touched[i] = false, nil
			to.settle(now)
		}
		touched = touched[:0]
		if pause := rest(n, dropped); pause > 0 {
			time.Sleep(pause)
		}
	}
}

// floodRest is the rest after each batch of a flood: the reader of strangers handles at most 64,000 datagrams of it a
// second, and the kernel drops the others where they arrive.
const floodRest = time.Millisecond

// noRest is for the reader of sessions.
func noRest(int, int) time.Duration { return 0 }

// restOfStrangers has the reader of strangers rest after a batch that was full, so that more datagrams wait, and of
// which less than half was good for anything. HELLOs of many nodes at once are not delayed.
func restOfStrangers(n, dropped int) time.Duration {
	if n < serverBatch || 2*dropped < n {
		return 0
	}
	return floodRest
}

// receive handles a datagram and may overwrite it. It returns the session of a datagram that was opened, which is then
// to be settled.
func (s *Server) receive(d []byte, addr netip.AddrPort) (*session, error) {
	kind, err := datagramKind(d)
	if err != nil {
		return nil, err
	}
	switch kind {
	case kindHello:
		return nil, s.receiveHello(d, addr)
	case kindData:
		return s.receiveData(d, addr)
	}
	return nil, errNoise
}

// receiveStranger handles a datagram that does not look like one of a session. Sessions have a single reader, so it is
// of none.
func (s *Server) receiveStranger(d []byte, addr netip.AddrPort) (*session, error) {
	if kind, err := datagramKind(d); err == nil && kind == kindData {
		if _, _, err = dataIDs(d); err != nil {
			return nil, err
		}
		return nil, errUnknown
	}
	return s.receive(d, addr)
}

// receiveHello answers a HELLO with a WELCOME. It does not affect any session, because the HELLO may be a replay.
func (s *Server) receiveHello(d []byte, addr netip.AddrPort) error {
	now := time.Now()
	h, key, err := s.hellos.open(d, addr.Addr(), now)
	if err != nil {
		return err
	}
	arrived := s.cfg.now()
	if s.waits.Load() {
		return nil // the client tries again, and stays with the previous server meanwhile
	}
	s.mu.Lock()
	p := s.pending.byRandom(h.client, now)
	if p == nil {
		p = &pending{hello: h, addr: addr, server: newRandom(), id: s.newSessionID(), born: now}
		p.seals = newSessionSeals(key, h.client, p.server)
		if s.pending.add(p) {
			s.counters.limit.Add(1)
		}
	}
	s.mu.Unlock()
	if p.addr != addr || p.hello.node != h.node {
		return fmt.Errorf("HELLO: %w: it was first sent from %s for node %s", errReplay, p.addr, p.hello.node)
	}
	w := welcome{
		client: h.client, server: p.server, session: p.id, boot: s.cfg.boot, instance: s.instance,
		echo: h.sent, echoArrived: arrived, sent: s.cfg.now(),
	}
	s.write(w.seal(key, newNonce()), addr)
	return nil
}

// write sends a datagram. An error is treated like a loss on the way.
func (s *Server) write(d []byte, addr netip.AddrPort) {
	s.counters.sent(len(d))
	_, _ = s.cfg.Conn.WriteToUDPAddrPort(d, addr)
}

// receiveData handles a datagram of a session, which it returns. The first one of a pending handshake makes the session
// live.
func (s *Server) receiveData(d []byte, addr netip.AddrPort) (*session, error) {
	id, counter, err := dataIDs(d)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	p := s.peers[id]
	var h *pending
	if p == nil {
		h = s.pending.byID(id, time.Now())
	}
	s.mu.Unlock()
	switch {
	case p != nil && p.addr == addr:
		return p.session, p.session.openAndProcess(counter, d)
	case h != nil && h.addr == addr:
		payload, err := openData(h.seals.toServer, d)
		if err != nil {
			return nil, err
		}
		if p, err = s.promote(h); err != nil {
			return nil, err
		}
		return p.session, p.session.process(counter, payload)
	}
	return nil, errUnknown
}

// promote turns a handshake into a session. The client has proved that it received the WELCOME.
func (s *Server) promote(h *pending) (*peer, error) {
	p := s.newPeer(h)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errLimit
	}
	s.pending.remove(h)
	old := s.nodes[p.Node]
	newer := old == nil || old.instance <= p.instance
	room := old != nil || len(s.peers) < maxPeers
	if newer && room {
		s.peers[p.ID], s.nodes[p.Node] = p, p
		p.before = old
	}
	s.mu.Unlock()
	switch {
	case !newer:
		s.counters.replaced.Add(1)
		p.session.refuse()
		return nil, fmt.Errorf("%w: node %s has a newer client at %s", errLimit, p.Node, old.addr)
	case !room:
		return nil, fmt.Errorf("%w: %d peers", errLimit, maxPeers)
	}
	if old != nil {
		s.counters.replaced.Add(1)
		old.session.end(errReplaced, goodbyeReplaced)
	}
	s.counters.sessions.Add(1)
	return p, nil
}

// newPeer returns a peer with a session that calls the server's handlers. It is not registered with the server yet.
func (s *Server) newPeer(h *pending) *peer {
	p := &peer{
		Peer: Peer{Node: h.hello.node, ID: h.id, Addr: h.addr, SameHost: h.hello.boot == s.cfg.boot},
		addr: h.addr, instance: h.hello.instance,
	}
	log := s.cfg.Log.With("node", p.Node, "peer", p.addr)
	to := net.UDPAddrFromAddrPort(p.addr)
	p.session = newSession(sessionConfig{
		local: h.id, remote: h.hello.session, seal: h.seals.toClient, open: h.seals.toServer,
		write:     func(datagrams [][]byte) { s.out.write(datagrams, to) },
		keepalive: s.cfg.Keepalive, patience: s.cfg.Keepalive, progress: s.progress, shift: !p.SameHost, now: s.cfg.now,
		counters: &s.counters, log: log, group: &s.group,
		joined: func() {
			if p.before != nil {
				<-p.before.session.finished
				p.before = nil
			}
			log.Info("daemon connected")
			p.joined.Store(true)
			if s.cfg.Joined != nil {
				s.cfg.Joined(p.Peer)
			}
		},
		work: func() { s.compareTable(p) },
		receive: func(m Message) {
			if s.cfg.Receive != nil {
				s.cfg.Receive(p.Peer, m)
			}
		},
		left: func(err error) {
			log.Info("daemon disconnected", "reason", err)
			if s.cfg.Left != nil {
				last := p.Peer
				last.Restarting = err == errRestarting
				s.cfg.Left(last)
			}
		},
		heard: func(k keepalive) { p.heardTable(tableState{k.tableVersion, k.tableHash}) },
		ended: func() { s.forget(p) },
	})
	return p
}
