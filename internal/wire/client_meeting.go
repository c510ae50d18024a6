// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"time"

	"wangell.loutres.me/internal/base/backoff"
)

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
