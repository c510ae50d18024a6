// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/cipher"
	"errors"
	"log/slog"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/tasks"
)

// DefaultKeepalive is the interval at which a client sends keepalives. A peer is gone after five intervals without a
// datagram, so a vanished node is noticed within 1.5 s. The cost is seven datagrams of 77 bytes per second and node.
const DefaultKeepalive = 300 * time.Millisecond

const (
	missedKeepalives   = 5 // intervals without a datagram after which the peer is gone
	restartingGoodbyes = 3 // copies of a GOODBYE that is not repeated; if all are lost, VIPs move needlessly
	firstHello         = 10 * time.Millisecond
	maxExtended        = 20 // keepalive intervals that a reader may be behind

	// maxQueue limits the segments of a session that wait to be sent.
	maxQueue = 1 << 16
)

// Errors of Send, SendThen, SendWait and SendAll.
var (
	// ErrPeerGone means that there is no session with the peer, or that it ended before the message was handled.
	ErrPeerGone = errors.New("wire: the peer is gone")
	// ErrQueueFull means that too many messages wait to be sent.
	ErrQueueFull = errors.New("wire: the send queue is full")
	// ErrClosed means that this end was closed.
	ErrClosed = errors.New("wire: closed")
)

// Reasons for the end of a session, and errAckBeyond for a malformed datagram.
var (
	errSilent     = errors.New("no datagram for five keepalive intervals")
	errGoodbye    = errors.New("the peer said goodbye")
	errRestarting = errors.New("the peer is being restarted")
	errMoved      = errors.New("the server has moved to another address")
	errReplaced   = errors.New("a newer client of this node has connected")
	errSlow       = errors.New("the peer does not keep up with its messages")
	errNoAnswer   = errors.New("no answer")
	errUnproven   = errors.New("the server did not confirm the handshake")
	errAckBeyond  = errors.New("acknowledgement of a segment that was never sent")
)

// sessionConfig is the part of a session that does not change.
type sessionConfig struct {
	local, remote uint64      // session IDs of received and of sent datagrams
	seal, open    cipher.AEAD // for sent and for received datagrams
	// write sends at most sendBatch datagrams.
	write     func(datagrams [][]byte)
	client    bool // the client sends keepalives at intervals, the server answers them
	keeps     bool // client: it understands a step that only gives its table another version
	keepalive time.Duration
	patience  time.Duration // how long the peer may take to confirm the handshake
	progress  *progress     // of the reader that hands this session its datagrams
	shift     bool          // the peer has another clock: convert the times of its messages
	now       func() monotime.Time
	counters  *counters
	log       *slog.Logger
	group     *tasks.Group // waits for the session's goroutine

	// joined, work, receive and left run on the session's goroutine: work first and after every poke, then joined, then
	// receive for each message, finally left. heard runs on the reader's goroutine.
	joined  func()
	work    func()
	receive func(Message)
	left    func(error)
	heard   func(keepalive)
	ended   func() // called on any goroutine as soon as the session has ended
}

// session is one end of a session. Datagrams are sent on the goroutine that has something to send. One goroutine of the
// session runs the handlers, and one timer repeats segments, sends keepalives and detects silence.
//
// Its methods: session.go has its life (start, timer, deadlines and end), session_io.go received datagrams, the
// goroutine that handles their messages, and sending.
type session struct {
	sessionConfig
	wake     chan struct{} // holds one element if the goroutine has something to do
	gone     chan struct{} // closed when the session has ended and all callbacks of messages have been called
	finished chan struct{} // closed when the goroutine has returned, or will never run

	mu           sync.Mutex
	counter      uint64 // of the next datagram
	replay       replayWindow
	sender       sender
	receiver     receiver
	clock        clockFilter
	unreliable   [][]byte // messages to send
	ackDue       bool
	keepaliveDue bool
	live         bool // a datagram of the peer was opened, and the goroutine was started
	endErr       error
	abandon      bool      // drop received messages that have not been handled
	heardAt      time.Time // when the last datagram was opened
	giveUp       time.Time // if set, the session is in doubt from then on unless a datagram arrives
	doubted      time.Time // since when the session is in doubt; zero if it is not
	extended     int       // how often the doubt was prolonged because the reader is behind
	keepaliveAt  time.Time // client: when the next keepalive is due
	confirmPause time.Duration
	echo         monotime.Time
	echoArrived  monotime.Time
	table        tableState // client: state of its table
	timer        *time.Timer
	armed        time.Time // when the timer fires; zero if it is stopped

	touched bool // used by the server's reader only: the session is to be settled

	// Used by the session's goroutine only.
	partial []byte // segments of an incomplete message
	skip    bool   // the rest of a message that is too long is being skipped
}

// poke makes the session's goroutine look for work.
func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

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
