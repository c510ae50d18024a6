// SPDX-License-Identifier: Apache-2.0

package wire

import "errors"

// leave ends the present attempt, so that the next one begins at once. c.mu is held.
func (c *Client) leave() {
	c.stop(errMoved, goodbyeClosed)
	select {
	case c.moved <- struct{}{}:
	default:
	}
}

// stop ends the present attempt, whether it dials, shakes hands or has a session. c.mu is held.
func (c *Client) stop(why error, goodbye byte) {
	if c.shaken != nil {
		c.shaken.end(why, goodbye)
	}
	if c.conn != nil {
		_ = c.conn.Close()
	}
	if c.dialing != nil {
		c.dialing()
	}
	if errors.Is(why, ErrClosed) {
		c.endMeeting()
	}
}

// endMeeting ends the handshake with the next server, and forgets its answer. c.mu is held.
func (c *Client) endMeeting() {
	if c.meeting != nil {
		c.meeting()
		c.meeting = nil
	}
	if c.met != nil {
		_ = c.met.conn.Close()
		c.met = nil
	}
}
