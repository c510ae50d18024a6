// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
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
	if first && !s.group.Go(s.run) {
		close(s.finished)
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
	if t, ok := m.(timed); ok {
		var offset time.Duration
		latest := s.now()
		if s.client {
			latest = math.MaxInt64 // it obeys the server
		}
		if s.shift {
			s.mu.Lock()
			_, offset = s.clock.best()
			s.mu.Unlock()
		}
		convertTimes(t, offset, latest)
	}
	s.counters.receivedMessages.Add(1)
	s.receive(m)
}

// malformed counts and logs a message that is dropped.
func (s *session) malformed(err error) {
	s.counters.malformedMessages.Add(1)
	s.log.Warn("malformed message dropped", "error", err)
}

// send queues encoded messages and sends as much as the window allows. done is optional; it is called once, with nil
// when the last message was handled or with ErrPeerGone if the session ended first. If send returns an error, done is
// never called.
func (s *session) send(done func(error), reliable bool, messages ...[]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr != nil {
		return ErrPeerGone
	}
	if len(s.sender.queue)+len(messages) > maxQueue {
		return ErrQueueFull
	}
	for i, m := range messages {
		if !reliable {
			s.unreliable = append(s.unreliable, m)
			continue
		}
		o := &outgoing{data: m}
		if i == len(messages)-1 {
			o.done = done
		}
		s.sender.push(o)
	}
	s.counters.sentMessages.Add(uint64(len(messages)))
	s.flush(time.Now())
	return nil
}

// unfinished returns the messages to send again in the next session: those that the peer has not completely
// acknowledged, except messages that are meaningful in this session only.
func (s *session) unfinished() (out [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sender.unfinished() {
		if !sessionScoped(Type(m.data[0])) {
			out = append(out, m.data)
		}
	}
	return out
}

// flush sends everything that is due, with as many frames per datagram as fit, and sets the timer for the rest. s.mu is
// held.
func (s *session) flush(now time.Time) {
	out := sendBuffers.Get().(*sendBuffer)
	defer sendBuffers.Put(out)
	for s.endErr == nil {
		d := beginData(out.buf(), s.remote, s.counter)
		if s.ackDue {
			d = s.receiver.ack().append(d)
			s.ackDue = false
		}
		if s.keepaliveDue {
			k := keepalive{
				sent: s.now(), echo: s.echo, echoArrived: s.echoArrived,
				tableVersion: s.table.version, tableHash: s.table.hash,
			}
			if s.keeps && !s.live && k.tableVersion != 0 {
				k.tableVersion |= tableKept
			}
			d = k.append(d)
			s.keepaliveDue = false
		}
		const end = maxDatagram - tagSize
		for len(s.unreliable) > 0 && len(d)+unreliableHeader+len(s.unreliable[0]) <= end {
			d = appendUnreliable(d, s.unreliable[0])
			s.unreliable = s.unreliable[1:]
		}
		for g := s.sender.peek(now); g != nil && len(d)+reliableHeader+len(g.data) <= end; g = s.sender.peek(now) {
			if s.sender.sent(g, now) {
				s.counters.repeats.Add(1)
			}
			d = appendReliable(d, g.seq, g.flags, g.data)
		}
		if len(d) == dataHeader {
			break
		}
		if s.enclose(out, d); len(out.list) == sendBatch {
			s.transmit(out)
		}
	}
	s.transmit(out)
	s.arm()
}

// settle sends what is due after datagrams were processed: several share an acknowledgement. The reader calls it.
func (s *session) settle(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flush(now)
}

// enclose seals the datagram that beginData began in out. s.mu is held.
func (s *session) enclose(out *sendBuffer, d []byte) {
	s.counter++
	d = sealData(s.seal, d)
	s.counters.sent(len(d))
	out.list = append(out.list, d)
}

// transmit sends the datagrams in out, which it empties. s.mu is held, so that they leave in the order of their
// counters.
func (s *session) transmit(out *sendBuffer) {
	if len(out.list) > 0 {
		s.write(out.list)
		out.list = out.list[:0]
	}
}
