// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"slices"
)

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
