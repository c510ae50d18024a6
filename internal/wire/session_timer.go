// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"wangell.loutres.me/internal/base/backoff"
)

// newSession returns a session that processes datagrams at once. The client's end must also be started.
func newSession(cfg sessionConfig) *session {
	now := time.Now()
	s := &session{
		sessionConfig: cfg,
		wake:          make(chan struct{}, 1), gone: make(chan struct{}), finished: make(chan struct{}),
		heardAt: now, keepaliveAt: now,
	}
	s.timer = time.AfterFunc(time.Hour, s.onTimer)
	s.timer.Stop()
	return s
}

// start makes the client's end send its first keepalive, which confirms the handshake.
func (s *session) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(time.Now())
}

// onTimer runs when the timer fires.
func (s *session) onTimer() {
	now := time.Now()
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return
	}
	s.armed = time.Time{}
	if now.Before(s.deadline()) {
		s.tick(now)
		s.mu.Unlock()
		return
	}
	if s.live && s.doubted.IsZero() {
		// A process that was stopped, or whose machine was suspended, could not receive anything. So the last interval
		// counts from here, where the process is known to run.
		s.doubted = now
		s.tick(now)
		s.mu.Unlock()
		return
	}
	if s.live && s.extended < maxExtended && s.progress.handled().Before(s.doubted) {
		s.extended++
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
}

// tick sends a keepalive if one is due, and whatever else is due. s.mu is held.
func (s *session) tick(now time.Time) {
	if s.client && !now.Before(s.keepaliveAt) {
		s.keepaliveDue = true
		pause := s.keepalive
		switch {
		case !s.live: // the handshake is not confirmed yet
			s.confirmPause = backoff.Next(s.confirmPause, firstHello, s.keepalive)
			pause = s.confirmPause
		case now.Sub(s.heardAt) > 2*s.keepalive: // ask more often before giving up
			pause /= 4
		}
		s.keepaliveAt = now.Add(pause)
	}
	s.flush(now)
}
