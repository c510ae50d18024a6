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
