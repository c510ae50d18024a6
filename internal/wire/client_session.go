// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// shakeHands repeats a HELLO until its WELCOME comes, for as long as a peer may be silent.
func (c *Client) shakeHands(conn *net.UDPConn) (*session, error) {
	h := hello{client: newRandom(), session: newID(), boot: c.cfg.boot, instance: c.instance, node: c.cfg.Node}
	buf := make([]byte, maxDatagram+1)
	until := time.Now().Add(missedKeepalives * c.cfg.Keepalive)
	var refused error
	for time.Now().Before(until) {
		h.sent = c.cfg.now()
		c.write(conn, sealHandshake(c.seals.hello, kindHello, newNonce(), h.encode()))
		if err := conn.SetReadDeadline(time.Now().Add(c.nextPause())); err != nil {
			return nil, err
		}
		for {
			n, err := conn.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return nil, ErrClosed
			}
			if errors.Is(err, syscall.ECONNREFUSED) {
				refused = err // one a HELLO; the server may come up any moment
				continue
			}
			if err != nil {
				break
			}
			c.counters.received(n)
			w, err := c.openWelcome(buf[:n], &h)
			if err != nil {
				c.dropped(err)
				continue
			}
			return c.begin(conn, &h, &w, c.cfg.now()), conn.SetReadDeadline(time.Time{})
		}
	}
	if refused != nil {
		return nil, refused
	}
	return nil, errors.New("no answer")
}

func (c *Client) openWelcome(d []byte, h *hello) (w welcome, err error) {
	kind, err := datagramKind(d)
	if err != nil {
		return w, err
	}
	if kind != kindWelcome {
		return w, errUnknown // of a session before
	}
	plain, err := openHandshake(c.seals.welcome, d, welcomeSize)
	if err != nil {
		return w, err
	}
	if w, err = decodeWelcome(plain); err != nil {
		return w, fmt.Errorf("WELCOME: %w", err)
	}
	if w.client != h.client {
		return w, fmt.Errorf("WELCOME: %w", errReplay)
	}
	return w, nil
}

// begin makes the session that a WELCOME offers; it is live when the server has answered on it.
func (c *Client) begin(conn *net.UDPConn, h *hello, w *welcome, arrived monotime.Time) *session {
	seals := newSessionSeals(c.cfg.Key, w.client, w.server)
	var s *session
	s = newSession(sessionConfig{
		local: h.session, remote: w.session, seal: seals.toServer, open: seals.toClient,
		write:  func(d []byte) { _, _ = conn.Write(d) },
		client: true, keepalive: c.cfg.Keepalive, shift: w.boot != c.cfg.boot, now: c.cfg.now,
		counters: &c.counters, log: c.cfg.Log, group: &c.group,
		joined:  func() { c.joined(s) },
		work:    func() {},
		receive: func(m Message) { c.receive(s, m) },
		left:    func(err error) { c.left(s, err) },
		ended:   func() { _ = conn.Close() },
	})
	s.table, s.hash = c.table.version, c.table.hash
	s.echo, s.echoArrived = w.sent, arrived
	s.learn(exchange{asked: w.echo, arrived: w.echoArrived, answered: w.sent, received: arrived})
	return s
}

// readSession opens the datagrams of a session until its socket is closed.
func (c *Client) readSession(conn *net.UDPConn, s *session) {
	buf := make([]byte, maxDatagram+1)
	for {
		n, err := conn.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			s.suspect()
			continue
		}
		if err != nil {
			c.sleep(firstHello) // nothing known comes here; it must not become a busy loop
			continue
		}
		c.counters.received(n)
		if err := c.receiveData(buf[:n], s); err != nil {
			c.dropped(err)
		}
	}
}

func (c *Client) receiveData(d []byte, s *session) error {
	kind, err := datagramKind(d)
	if err != nil {
		return err
	}
	if kind != kindData {
		return errUnknown // a WELCOME that came twice
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

func (c *Client) write(conn *net.UDPConn, d []byte) {
	c.counters.sent(len(d))
	_, _ = conn.Write(d)
}

func (c *Client) dropped(err error) {
	c.counters.drop(err)
	if now := time.Now(); !errors.Is(err, errUnknown) && now.Sub(c.dropLog) >= dropLogGap {
		c.dropLog = now
		c.cfg.Log.Warn("datagram dropped (further ones are only counted for a while)", "from", c.target, "error", err)
	}
}
