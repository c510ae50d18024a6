// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net"
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
