// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"crypto/cipher"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"wangell.loutres.me/internal/base/backoff"
)

// run connects again and again until the client is closed.
func (c *Client) run() {
	for attempt := 1; ; attempt++ {
		live, err := c.attempt()
		if c.ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		moved := c.server != c.target || c.target == ""
		select {
		case <-c.moved: // moved says so
		default:
		}
		c.mu.Unlock()
		switch {
		case moved:
			attempt, c.pause, c.failed = 0, 0, 0
		case errors.Is(err, errReplaced):
			c.cfg.Log.Warn("a newer daemon with this node's name is connected: stop one of them, or give each its "+
				"own --node", "node", c.cfg.Node)
			// Try again later: the other daemon may end.
			c.sleep(missedKeepalives * c.cfg.Keepalive)
		case live:
			attempt = 0
		default:
			if errors.Is(err, errNoAnswer) && c.cfg.Unanswered != nil {
				c.cfg.Unanswered()
			}
			if attempt&(attempt-1) == 0 { // ever more rarely
				c.cfg.Log.Warn("cannot connect to the controller: check that it runs, its address, and that this node's "+
					"key is derived from its key", "server", c.target, "attempts", attempt, "error", err)
			}
			if errors.Is(err, errNoAnswer) || errors.Is(err, errUnproven) {
				c.failed++
			}
			c.sleep(c.nextPause())
		}
	}
}

// sleep waits for d, or until the server moves or the client is closed.
func (c *Client) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.moved:
	case <-c.ctx.Done():
	}
}

// dialServer opens a socket to a server.
func dialServer(ctx context.Context, server string) (*net.UDPConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	udp := conn.(*net.UDPConn)
	_ = udp.SetReadBuffer(socketBuffer)
	return udp, nil
}

// takeMeeting returns the handshake with the server of this attempt: the one that was made beside the session before
// this attempt, or a new one.
func (c *Client) takeMeeting(ctx context.Context) (*greeting, error) {
	c.mu.Lock()
	g := c.met
	c.met = nil
	if g == nil {
		c.endMeeting()
	} else {
		c.conn = g.conn
	}
	c.mu.Unlock()
	if g != nil {
		return g, nil
	}
	conn, err := dialServer(ctx, c.target)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.conn = conn
	stopped := ctx.Err() != nil
	c.mu.Unlock()
	if stopped {
		_ = conn.Close()
		return nil, ErrClosed
	}
	if g, err = c.shakeHands(conn, c.target, c.patience(c.failed), c.nextPause, &c.drops); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return g, nil
}

// attempt opens a socket, shakes hands, and handles datagrams until the session has ended. live reports whether the
// session became live.
func (c *Client) attempt() (live bool, err error) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	c.mu.Lock()
	c.target, c.dialing = c.server, cancel
	c.mu.Unlock()
	if c.target == "" {
		select {
		case <-c.moved:
		case <-c.ctx.Done():
		}
		return false, errMoved
	}
	g, err := c.takeMeeting(ctx)
	if err != nil {
		return false, err
	}
	conn := g.conn
	defer conn.Close()
	s := c.newSession(g)
	c.mu.Lock()
	s.start()
	c.shaken = s
	c.mu.Unlock()
	c.readSession(conn, s)
	select {
	case <-s.gone:
	default: // the socket was closed by stop, not by the end of the session
		s.end(ErrClosed, 0)
	}
	s.mu.Lock()
	live, err = s.live, s.endErr
	s.mu.Unlock()
	if live {
		<-s.finished
	}
	return live, err
}

// A client that learns of another server has a session with the one before, which keeps reporting what happens while
// it hands over. So the client shakes hands with the next server beside its session, which it leaves once it is
// answered.

// meet begins to shake hands with the next server. c.mu is held.
func (c *Client) meet(server string) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.meeting = cancel
	c.group.Go(func() {
		defer cancel()
		var pause time.Duration
		drops := dropLog{counters: &c.counters, log: c.cfg.Log}
		next := func() time.Duration {
			pause = backoff.Next(pause, firstHello, c.cfg.Keepalive)
			return pause
		}
		for failed := 0; ctx.Err() == nil; failed++ {
			g, err := c.greet(ctx, server, c.patience(failed), next, &drops)
			if err != nil {
				if errors.Is(err, errNoAnswer) && c.cfg.Unanswered != nil {
					c.cfg.Unanswered()
				}
				select {
				case <-time.After(next()):
				case <-ctx.Done():
				}
				continue
			}
			c.mu.Lock()
			if ctx.Err() == nil {
				c.met = g
				c.leave()
			} else {
				_ = g.conn.Close()
			}
			c.mu.Unlock()
			return
		}
	})
}

// greet shakes hands with a server.
func (c *Client) greet(
	ctx context.Context, server string, patience time.Duration, pause func() time.Duration, drops *dropLog,
) (*greeting, error) {
	conn, err := dialServer(ctx, server)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	g, err := c.shakeHands(conn, server, patience, pause, drops)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return g, nil
}

// shakeHands repeats a HELLO until it is answered by a WELCOME, or patience has passed. pause returns the pause after
// the next HELLO.
func (c *Client) shakeHands(
	conn *net.UDPConn, server string, patience time.Duration, pause func() time.Duration, drops *dropLog,
) (*greeting, error) {
	h := hello{client: newRandom(), session: newID(), boot: c.cfg.boot, instance: c.instance, node: c.cfg.Node}
	c.mu.Lock()
	key := c.key
	c.mu.Unlock()
	seal := handshakeSeal(key, useWelcome)
	buf := make([]byte, maxDatagram+1)
	until := time.Now().Add(patience)
	var refused error
	for time.Now().Before(until) {
		h.sent = c.cfg.now()
		c.write(conn, h.seal(key, newNonce()))
		if err := conn.SetReadDeadline(time.Now().Add(pause())); err != nil {
			return nil, err
		}
		for {
			n, err := conn.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return nil, ErrClosed
			}
			if errors.Is(err, syscall.ECONNREFUSED) {
				refused = err // reported once per HELLO; the server may start at any moment
				continue
			}
			if err != nil {
				break
			}
			c.counters.received(n)
			w, err := c.openWelcome(buf[:n], seal, &h)
			if err != nil {
				drops.dropped(err, server)
				continue
			}
			g := &greeting{conn: conn, key: key, hello: h, welcome: w, arrived: c.cfg.now()}
			return g, conn.SetReadDeadline(time.Time{})
		}
	}
	if refused != nil {
		return nil, refused
	}
	return nil, errNoAnswer
}

// openWelcome opens the answer to h.
func (c *Client) openWelcome(d []byte, seal cipher.AEAD, h *hello) (w welcome, err error) {
	kind, err := datagramKind(d)
	if err != nil {
		return w, err
	}
	if kind != kindWelcome {
		return w, errUnknown // of an earlier session
	}
	plain, err := openHandshake(seal, d, clearHeader, welcomeSize)
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

// write sends a datagram. An error is treated like a loss on the way.
func (c *Client) write(conn *net.UDPConn, d []byte) {
	c.counters.sent(len(d))
	_, _ = conn.Write(d)
}

// patience returns how long a handshake waits for its WELCOME after some that failed. It doubles: a server that many
// clients ask at once may answer so late that a shorter handshake has always ended by then, to begin anew.
func (c *Client) patience(failed int) time.Duration {
	return min(missedKeepalives*c.cfg.Keepalive<<min(failed, 2), pendingLife/2)
}

// nextPause returns the pause after the next HELLO. Pauses double up to one keepalive interval.
func (c *Client) nextPause() time.Duration {
	c.pause = backoff.Next(c.pause, firstHello, c.cfg.Keepalive)
	return c.pause
}
