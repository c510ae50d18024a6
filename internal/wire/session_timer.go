// SPDX-License-Identifier: Apache-2.0

package wire

import "time"

// deadline is when the session is over, or comes into doubt, unless something is heard.
func (s *session) deadline() time.Time {
	switch {
	case !s.live:
		return s.heardAt.Add(s.keepalive)
	case !s.doubted.IsZero():
		return s.doubted.Add(s.keepalive)
	}
	t := s.heardAt.Add((missedKeepalives - 1) * s.keepalive)
	if !s.giveUp.IsZero() && s.giveUp.Before(t) {
		return s.giveUp
	}
	return t
}

// arm sets the timer to the next thing to do, if that is before it fires anyway.
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

// onTimer is called by the timer.
func (s *session) onTimer() {
	now := time.Now()
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return
	}
	s.armed = time.Time{}
	if !now.Before(s.deadline()) {
		// While this process or the whole machine stood still, nothing could be heard. So the last keepalive counts from
		// when it is seen, by a process that runs, that the others were missed.
		if s.live && s.doubted.IsZero() {
			s.doubted = now
			s.tick(now)
			s.mu.Unlock()
			return
		}
		err := errSilent
		if !s.live {
			err = errUnproven
		}
		s.mu.Unlock()
		s.end(err, 0)
		return
	}
	s.tick(now)
	s.mu.Unlock()
}

// tick asks the server for a sign of life if it is time, and sends what is due.
func (s *session) tick(now time.Time) {
	if s.client && !now.Before(s.keepaliveAt) {
		s.keepaliveDue = true
		gap := s.keepalive
		switch {
		case !s.live: // the first ones complete the handshake
			gap = s.keepaliveGap
			s.keepaliveGap = min(2*gap, s.keepalive)
		case now.Sub(s.heardAt) > 2*s.keepalive: // ask oftener before giving up
			gap /= 4
		}
		s.keepaliveAt = now.Add(gap)
	}
	s.flush(now)
}

// suspect is told when the network says that nobody listens at the peer's address. That may be forged, so
// it only shortens the patience.
func (s *session) suspect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.giveUp.IsZero() {
		s.giveUp = time.Now().Add(s.keepalive)
		s.arm()
	}
}
