// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// openAndProcess handles a datagram of this session, whose header has been checked. It overwrites d. The caller calls
// settle after it, or after several.
func (s *session) openAndProcess(counter uint64, d []byte) error {
	s.mu.Lock()
	fresh := s.replay.fresh(counter)
	s.mu.Unlock()
	if !fresh {
		return errReplay
	}
	payload, err := openData(s.open, d)
	if err != nil {
		return err
	}
	return s.process(counter, payload)
}

// process handles the payload of an opened datagram. Only the reader's goroutine calls it, and settle after it.
func (s *session) process(counter uint64, payload []byte) error {
	now, mono := time.Now(), s.now()
	var after []func() // run without s.mu
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return nil
	}
	newest := counter >= s.replay.top
	s.replay.commit(counter)
	s.heardAt, s.giveUp, s.doubted, s.extended = now, time.Time{}, time.Time{}, 0
	first := !s.live
	s.live = true
	var problem error
	err := parseFrames(payload, func(f *frame) {
		switch f.kind {
		case frameAck:
			handled, ok := s.sender.acknowledge(f.ack, now)
			if !ok {
				problem = errAckBeyond
			}
			for _, done := range handled {
				after = append(after, func() { done(nil) })
			}
		case frameKeepalive:
			// An overtaken keepalive would report an old table and lengthen the measured round trip.
			if k := f.keepalive; newest {
				s.processKeepalive(k, mono)
				if !s.client {
					after = append(after, func() { s.heard(k) })
				}
			}
		case frameReliable:
			s.ackDue = true
			if s.receiver.accept(f.seq, f.flags, f.data) {
				s.poke()
			} else {
				s.counters.duplicates.Add(1)
			}
		case frameUnreliable:
			if s.receiver.acceptUnreliable(f.data) {
				s.poke()
			}
		case frameGoodbye:
			err := goodbyeError(f.reason)
			after = append(after, func() { s.end(err, 0) })
		}
	})
	s.mu.Unlock()
	for _, f := range after {
		f()
	}
	if first {
		s.group.Go(s.run)
	}
	if err == nil {
		err = problem
	}
	return err
}

// processKeepalive records the times of a keepalive that arrived at mono; the server answers it. s.mu is held.
func (s *session) processKeepalive(k keepalive, mono monotime.Time) {
	s.echo, s.echoArrived = k.sent, mono
	if k.echo != 0 {
		s.learn(exchange{asked: k.echo, arrived: k.echoArrived, answered: k.sent, received: mono})
	}
	s.keepaliveDue = s.keepaliveDue || !s.client
}

// learn adds an exchange of times to the estimate of the peer's clock and of the round trip. s.mu is held.
func (s *session) learn(e exchange) {
	s.clock.add(e)
	s.sender.rtt, _ = s.clock.best()
}

// goodbyeError returns why the session ends after a GOODBYE; unknown reasons count as goodbyeClosed.
func goodbyeError(reason uint8) error {
	switch reason {
	case goodbyeReplaced:
		return errReplaced
	case goodbyeRestarting:
		return errRestarting
	}
	return errGoodbye
}
