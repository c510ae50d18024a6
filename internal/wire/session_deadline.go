// SPDX-License-Identifier: Apache-2.0

package wire

import "time"

// deadline returns when the session ends, or comes into doubt, unless a datagram arrives. s.mu is held.
func (s *session) deadline() time.Time {
	switch {
	case !s.live:
		return s.heardAt.Add(s.patience)
	case !s.doubted.IsZero():
		return s.doubted.Add(time.Duration(1+s.extended) * s.keepalive)
	}
	t := s.heardAt.Add((missedKeepalives - 1) * s.keepalive)
	if !s.giveUp.IsZero() && s.giveUp.Before(t) {
		return s.giveUp
	}
	return t
}

// arm sets the timer to the next time at which there is something to do, unless it fires before that. s.mu is held.
func (s *session) arm() {
	if s.endErr != nil {
		return
	}
	t := s.deadline()
	if d := s.sender.deadline(); !d.IsZero() && d.Before(t) {
		t = d
	}
	if s.client && s.keepaliveAt.Before(t) {
		t = s.keepaliveAt
	}
	if s.armed.IsZero() || t.Before(s.armed) {
		s.armed = t
		s.timer.Reset(time.Until(t))
	}
}

// suspect shortens the time after which silence ends the session, because the network reports that nothing listens at
// the peer's address. Such a report may be forged, so it does not end the session.
func (s *session) suspect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.giveUp.IsZero() {
		s.giveUp = time.Now().Add(s.keepalive)
		s.arm()
	}
}
