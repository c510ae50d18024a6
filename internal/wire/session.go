// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/cipher"
	"errors"
	"log/slog"
	"sync"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// DefaultKeepalive is how often a client asks for a sign of life. With five of them unanswered a peer is gone: a node that
// vanished is noticed within 1.5 s. It costs seven datagrams of 77 bytes a second and node.
const DefaultKeepalive = 300 * time.Millisecond

const (
	missedKeepalives = 5 // so many without a datagram, and the peer is gone
	stayingGoodbyes  = 3 // nothing repeats them, and a lost one costs VIPs that move for nothing
	firstHello       = 10 * time.Millisecond

	// maxQueue bounds the segments of a session that wait to be sent.
	maxQueue = 1 << 16
)

// Errors of Send and SendWait.
var (
	// ErrPeerGone: there is no session with the peer, or it ended before the message was handled.
	ErrPeerGone = errors.New("wire: the peer is gone")
	// ErrQueueFull: more messages wait to be sent than the package keeps.
	ErrQueueFull = errors.New("wire: the send queue is full")
	// ErrClosed: this end was closed.
	ErrClosed = errors.New("wire: closed")
)

// Why a session ended.
var (
	errSilent    = errors.New("no datagram for five keepalives")
	errGoodbye   = errors.New("the peer said goodbye")
	errStaying   = errors.New("the peer ends, to be started again")
	errMoved     = errors.New("the server has another address now")
	errReplaced  = errors.New("a newer client of this node took its place")
	errSlow      = errors.New("the peer does not keep up with its messages")
	errUnproven  = errors.New("the server did not confirm the handshake")
	errAckBeyond = errors.New("acknowledgement of a segment that was never sent")
)

// sessionConfig does not change during a session.
type sessionConfig struct {
	local, remote uint64      // session IDs: of datagrams that come, and that go
	seal, open    cipher.AEAD //
	write         func(d []byte)
	client        bool // the client asks with its keepalives, the server answers
	keepalive     time.Duration
	shift         bool // times of the peer are of another clock
	now           func() monotime.Time
	counters      *counters
	log           *slog.Logger
	group         *sync.WaitGroup // of the session's goroutine

	// joined, work, receive and left run on the session's goroutine, in this order: work before joined and
	// whenever poke was called, receive for each message. heard runs on the reader's.
	joined  func()
	work    func()
	receive func(Message)
	left    func(error)
	heard   func(keepalive)
	ended   func() // as soon as the session has ended, on any goroutine
}

// session is one end of a session: it seals and sends, opens and orders. A datagram is sent by whoever
// has something to send; one goroutine runs the handlers; one timer repeats, keeps alive and gives up.
type session struct {
	sessionConfig
	wake     chan struct{} // something for the goroutine
	gone     chan struct{} // closed when the session has ended and everybody who waits for an answer knows
	finished chan struct{} // closed when the goroutine has ended, after left, or when there never will be one

	mu           sync.Mutex
	counter      uint64 // of the next datagram
	replay       replayWindow
	sender       sender
	receiver     receiver
	clock        clockFilter
	loose        [][]byte // unreliable messages to send
	ackDue       bool
	keepaliveDue bool
	live         bool // a datagram of the peer opened, so the goroutine runs
	endErr       error
	abandon      bool      // do not handle what was received
	heardAt      time.Time // last datagram that opened
	giveUp       time.Time // if set: in doubt when nothing is heard until then
	doubted      time.Time // when it was seen that too little is heard; zero if that is not so
	keepaliveAt  time.Time // client: when to ask next
	keepaliveGap time.Duration
	echo         monotime.Time
	echoArrived  monotime.Time
	table, hash  uint64 // client: version and hash of its table
	timer        *time.Timer
	armed        time.Time // when the timer fires; zero if it does not
	buf          [maxDatagram]byte

	partial []byte // of the goroutine: fragments of a message
	skip    bool   // of the goroutine: the rest of a message that is too long
}

func newSession(cfg sessionConfig) *session {
	now := time.Now()
	s := &session{
		sessionConfig: cfg,
		wake:          make(chan struct{}, 1), gone: make(chan struct{}), finished: make(chan struct{}),
		heardAt: now, keepaliveAt: now, keepaliveGap: firstHello,
	}
	s.timer = time.AfterFunc(time.Hour, s.onTimer)
	s.timer.Stop()
	return s
}

// start lets the client's end ask for the first time.
func (s *session) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(time.Now())
}

// openAndProcess takes a datagram of this session, whose header was read.
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

// process takes the payload of a datagram that opened. Only the reader's goroutine calls it.
func (s *session) process(counter uint64, payload []byte) error {
	now, mono := time.Now(), s.now()
	var after []func()
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return nil
	}
	newest := counter >= s.replay.top
	s.replay.commit(counter)
	s.heardAt, s.giveUp, s.doubted = now, time.Time{}, time.Time{}
	first := !s.live
	s.live = true
	var problem error
	err := parseFrames(payload, func(f *frame) {
		switch f.kind {
		case frameAck:
			handled, ok := s.sender.acknowledge(f.ack)
			if !ok {
				problem = errAckBeyond
			}
			for _, f := range handled {
				after = append(after, func() { f(nil) })
			}
		case frameKeepalive:
			if k := f.keepalive; newest {
				s.echo, s.echoArrived = k.sent, mono
				if k.echo != 0 {
					s.learn(exchange{asked: k.echo, arrived: k.echoArrived, answered: k.sent, received: mono})
				}
				if !s.client {
					s.keepaliveDue = true
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
			err := errGoodbye
			switch f.reason {
			case goodbyeReplaced:
				err = errReplaced
			case goodbyeStaying:
				err = errStaying
			}
			after = append(after, func() { s.end(err, 0) })
		}
	})
	s.flush(now)
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

// learn takes an exchange of times.
func (s *session) learn(e exchange) {
	s.clock.add(e)
	s.sender.rtt, _ = s.clock.best()
}

// poke wakes the session's goroutine.
func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// send queues encoded messages and sends what the window allows. done, if set, is called once: with nil when the
// last one was handled, with ErrPeerGone if the session ended before. After an error it is never called.
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
			s.loose = append(s.loose, m)
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

// unfinished returns the messages that the peer has not wholly acknowledged, but for those of this session only.
func (s *session) unfinished() (out [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.sender.unfinished() {
		if !ofSession(Type(m.data[0])) {
			out = append(out, m.data)
		}
	}
	return out
}

// flush sends what there is to send now, several frames a datagram, and sets the timer for the rest.
func (s *session) flush(now time.Time) {
	for s.endErr == nil {
		d := beginData(s.buf[:], s.remote, s.counter)
		if s.ackDue {
			d = s.receiver.ack().append(d)
			s.ackDue = false
		}
		if s.keepaliveDue {
			d = keepalive{sent: s.now(), echo: s.echo, echoArrived: s.echoArrived, tableVersion: s.table, table: s.hash}.append(d)
			s.keepaliveDue = false
		}
		const end = maxDatagram - tagSize
		for len(s.loose) > 0 && len(d)+unreliableHeader+len(s.loose[0]) <= end {
			d = appendUnreliable(d, s.loose[0])
			s.loose = s.loose[1:]
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
		s.transmit(d)
	}
	s.arm()
}

// transmit seals and sends a datagram that beginData began.
func (s *session) transmit(d []byte) {
	s.counter++
	d = sealData(s.seal, d)
	s.counters.sent(len(d))
	s.write(d)
}

// end ends the session. A goodbye other than zero is told to the peer, and then what was received and not
// handled is dropped.
func (s *session) end(err error, goodbye byte) {
	s.mu.Lock()
	if s.endErr != nil {
		s.mu.Unlock()
		return
	}
	if goodbye != 0 {
		times := 1
		if goodbye == goodbyeStaying {
			times = stayingGoodbyes
		}
		for range times {
			s.transmit(append(beginData(s.buf[:], s.remote, s.counter), frameGoodbye, goodbye))
		}
		s.abandon = true
	}
	s.endErr = err
	s.timer.Stop()
	unanswered, ran := s.sender.unanswered(), s.live
	s.mu.Unlock()
	if !ran { // nothing was processed, and nothing will be
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

// refuse answers the client that it has been replaced. Nothing else may be sent on this session.
func (s *session) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endErr = errReplaced
	s.transmit(append(beginData(s.buf[:], s.remote, s.counter), frameGoodbye, goodbyeReplaced))
}
