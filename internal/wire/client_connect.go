// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"net"
	"time"
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
			attempt, c.pause = 0, 0
		case errors.Is(err, errReplaced):
			c.cfg.Log.Warn("a newer daemon with this node's name is connected: stop one of them, or give each its "+
				"own --node", "node", c.cfg.Node)
			// Try again later: the other daemon may end.
			c.sleep(missedKeepalives * c.cfg.Keepalive)
		case live:
			attempt = 0
		default:
			if attempt&(attempt-1) == 0 { // ever more rarely
				c.cfg.Log.Warn("cannot connect to the controller: check that it runs, its address, and that both have "+
					"the same key", "server", c.target, "attempts", attempt, "error", err)
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
	var dialer net.Dialer
	dialed, err := dialer.DialContext(ctx, "udp", c.target)
	if err != nil {
		return false, err
	}
	conn := dialed.(*net.UDPConn)
	defer conn.Close()
	_ = conn.SetReadBuffer(socketBuffer)
	c.mu.Lock()
	c.conn = conn
	stopped := ctx.Err() != nil
	c.mu.Unlock()
	if stopped {
		return false, ErrClosed
	}
	s, err := c.shakeHands(conn)
	if err != nil {
		return false, err
	}
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
