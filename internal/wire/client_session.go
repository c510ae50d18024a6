// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net"
	"slices"
	"syscall"
	"time"
)

// newSession returns the session that a WELCOME offers. It becomes live when the server answers in it.
func (c *Client) newSession(g *greeting) *session {
	conn, h, w, arrived := g.conn, &g.hello, &g.welcome, g.arrived
	seals := newSessionSeals(g.key, w.client, w.server)
	out := newBatchWriter(conn)
	var s *session
	s = newSession(sessionConfig{
		local: h.session, remote: w.session, seal: seals.toServer, open: seals.toClient,
		write:  func(datagrams [][]byte) { out.write(datagrams, nil) },
		client: true, keeps: c.cfg.Kept != nil, shift: w.boot != c.cfg.boot, now: c.cfg.now,
		keepalive: c.cfg.Keepalive, patience: c.patience(c.failed), progress: newProgress(),
		counters: &c.counters, log: c.cfg.Log, group: &c.group,
		joined:  func() { c.joined(s) },
		work:    func() {},
		receive: func(m Message) { c.receive(s, m) },
		left:    func(err error) { c.left(s, err) },
		ended:   func() { _ = conn.Close() },
	})
	s.table = c.table.tableState
	s.echo, s.echoArrived = w.sent, arrived
	s.learn(exchange{asked: w.echo, arrived: w.echoArrived, answered: w.sent, received: arrived})
	return s
}

// readSession handles the datagrams of a session until its socket is closed.
func (c *Client) readSession(conn *net.UDPConn, s *session) {
	in := newBatchReader(conn, clientBatch, s.progress, c.cfg.Keepalive)
	for {
		n, err := in.read()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			s.suspect()
			continue
		}
		if err != nil {
			time.Sleep(firstHello) // an unexpected error may persist and must not cause a busy loop
			continue
		}
		for i := range n {
			d := in.datagram(i)
			c.counters.received(len(d))
			if err := receiveData(d, s); err != nil {
				c.drops.dropped(err, c.target)
			}
		}
		s.settle(time.Now())
	}
}

// receiveData handles a datagram of the client's only session, which is then to be settled.
func receiveData(d []byte, s *session) error {
	kind, err := datagramKind(d)
	if err != nil {
		return err
	}
	if kind != kindData {
		return errUnknown // mostly the answer to a repeated HELLO
	}
	id, counter, err := dataIDs(d)
	if err != nil {
		return err
	}
	if id != s.local {
		return errUnknown
	}
	return s.openAndProcess(counter, d)
}

// joined makes a session the current one and sends it the messages that waited.
func (c *Client) joined(s *session) {
	s.mu.Lock()
	refused := s.endErr != nil && errors.Is(s.endErr, errReplaced)
	s.mu.Unlock()
	if refused {
		return
	}
	c.pause, c.failed = 0, 0
	c.counters.sessions.Add(1)
	c.cfg.Log.Info("connected to the controller", "server", c.target)
	c.mu.Lock()
	if c.ctx.Err() != nil {
		s.end(ErrClosed, goodbyeClosed)
	}
	c.current = s
	if s.send(nil, true, slices.Concat(c.first, c.waiting)...) == nil {
		c.waiting = nil
	}
	c.mu.Unlock()
	if c.cfg.Connected != nil {
		c.cfg.Connected()
	}
}

// left keeps the messages that an ended session did not deliver for the next one.
func (c *Client) left(s *session, err error) {
	c.mu.Lock()
	if c.current != s {
		c.mu.Unlock()
		return // joined saw that it was refused
	}
	c.current = nil
	c.waiting = append(s.unfinished(), c.waiting...)
	if n := len(c.waiting); n > maxWaiting {
		c.waiting = c.waiting[:maxWaiting]
		c.cfg.Log.Warn("messages to the controller dropped: too many wait for a connection", "dropped", n-maxWaiting)
	}
	c.mu.Unlock()
	c.cfg.Log.Info("disconnected from the controller", "server", c.target, "reason", err)
	if c.cfg.Disconnected != nil {
		c.cfg.Disconnected()
	}
}

// receive applies a SYNC to the table and passes every other message to the handler.
func (c *Client) receive(s *session, m Message) {
	piece, ok := m.(*Sync)
	if !ok {
		if c.cfg.Receive != nil {
			c.cfg.Receive(m)
		}
		return
	}
	step, err := c.table.add(piece)
	s.mu.Lock()
	s.table = c.table.tableState
	s.mu.Unlock()
	if err != nil {
		c.counters.syncRepairs.Add(1)
		c.cfg.Log.Warn("the table of services is inconsistent; requesting all of it", "error", err)
		return
	}
	if step == nil {
		return
	}
	c.counters.syncSteps.Add(1)
	if step.Base != 0 && len(step.Upserts)+len(step.Removals) == 0 && c.cfg.Kept != nil {
		c.cfg.Kept()
		return
	}
	if c.cfg.Services != nil {
		c.cfg.Services(step.Base == 0, step.Upserts, step.Removals)
	}
}
