// SPDX-License-Identifier: Apache-2.0

package wire

// end ends the session for the reason err. If goodbye is not zero, it sends a GOODBYE with that reason, and drops
// received messages that have not been handled.
func (s *session) end(err error, goodbye byte) {
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return
	}
	if goodbye != 0 {
		copies := 1
		if goodbye == goodbyeRestarting {
			copies = restartingGoodbyes
		}
		for range copies {
			s.transmitGoodbye(goodbye)
		}
		s.abandon = true
	}
	s.endErr = err
	s.timer.Stop()
	unanswered, started := s.sender.unanswered(), s.live
	s.mu.Unlock()
	if !started { // the goroutine does not run, and never will
		close(s.finished)
	}
	for _, done := range unanswered {
		done(ErrPeerGone)
	}
	close(s.gone)
	if err == errSilent {
		s.counters.lost.Add(1)
	}
	s.ended()
}

// refuse ends a new session at once, because a newer client of its node is connected. Only a GOODBYE is sent in it.
func (s *session) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endErr = errReplaced
	s.transmitGoodbye(goodbyeReplaced)
}

// transmitGoodbye sends a GOODBYE. s.mu is held.
func (s *session) transmitGoodbye(reason byte) {
	out := sendBuffers.Get().(*sendBuffer)
	defer sendBuffers.Put(out)
	s.enclose(out, append(beginData(out.buf(), s.remote, s.counter), frameGoodbye, reason))
	s.transmit(out)
}
