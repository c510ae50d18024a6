// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"time"
)

// run is the session's goroutine. It calls the handlers until the session has ended.
func (s *session) run() {
	defer close(s.finished)
	s.work()
	s.joined()
	for {
		s.mu.Lock()
		in, ok := s.receiver.take()
		stop := s.endErr != nil && (!ok || s.abandon)
		err := s.endErr
		s.mu.Unlock()
		switch {
		case stop:
			<-s.gone
			s.left(err)
			return
		case ok:
			s.handle(in)
		default:
			select {
			case <-s.wake:
				s.work()
			case <-s.gone:
			}
		}
	}
}

// handle delivers an unreliable message, or the message that a segment completes, and acknowledges the segment as
// handled.
func (s *session) handle(in incoming) {
	if !in.reliable {
		s.deliver(in.data)
		return
	}
	if whole := s.assemble(in); whole != nil {
		s.deliver(whole)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receiver.done = in.seq + 1
	if in.flags&flagDone != 0 {
		s.ackDue = true
		s.flush(time.Now())
	}
}

// assemble returns the message that a segment completes, or nil.
func (s *session) assemble(in incoming) []byte {
	more := in.flags&flagMore != 0
	if s.skip || len(s.partial)+len(in.data) > maxMessage {
		if !s.skip {
			s.malformed(fmt.Errorf("wire: message of more than %d bytes", maxMessage))
		}
		s.skip, s.partial = more, nil
		return nil
	}
	if s.partial == nil && !more {
		return in.data
	}
	if s.partial = append(s.partial, in.data...); more {
		return nil
	}
	whole := s.partial
	s.partial = nil
	return whole
}

// deliver decodes a message, converts its times to the local clock, and calls the handler.
func (s *session) deliver(whole []byte) {
	m, err := decode(whole)
	if err != nil {
		s.malformed(err)
		return
	}
	if t, ok := m.(timed); ok && s.shift {
		s.mu.Lock()
		_, offset := s.clock.best()
		s.mu.Unlock()
		t.shift(offset)
	}
	s.counters.receivedMessages.Add(1)
	s.receive(m)
}

// malformed counts and logs a message that is dropped.
func (s *session) malformed(err error) {
	s.counters.malformedMessages.Add(1)
	s.log.Warn("malformed message dropped", "error", err)
}
