// SPDX-License-Identifier: Apache-2.0

package wire

import "time"

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
