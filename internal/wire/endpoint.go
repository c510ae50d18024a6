// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// socketBuffer is the size in bytes that both ends ask for as the receive buffer of their socket. The kernel grants
// what net.core.rmem_max allows; datagrams that do not fit are lost and repeated. It is not larger because a server
// that is overloaded would then find keepalives too old instead of lost.
const socketBuffer = 1 << 20

// environment is what both ends need from the machine they run on. Tests replace it to play another machine.
type environment struct {
	boot bootID
	now  func() monotime.Time
}

// withDefaults returns the environment with unset fields read from the machine.
func (e environment) withDefaults() (environment, error) {
	var err error
	if e.boot == (bootID{}) {
		e.boot, err = readBootID()
	}
	if e.now == nil {
		e.now = monotime.Now
	}
	return e, err
}

// logOrDiscard returns log, or a logger that discards everything if log is nil.
func logOrDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

// keepaliveOrDefault returns d, or DefaultKeepalive if d is not positive.
func keepaliveOrDefault(d time.Duration) time.Duration {
	if d <= 0 {
		return DefaultKeepalive
	}
	return d
}

// dropLog counts dropped datagrams and logs a few of them. Only the goroutine that reads the socket uses it.
type dropLog struct {
	counters *counters
	log      *slog.Logger
	last     time.Time
}

// dropped counts a datagram that was dropped because of err. from is its sender.
func (l *dropLog) dropped(err error, from any) {
	l.counters.drop(err)
	// Late datagrams of a session that has ended are normal.
	if now := time.Now(); !errors.Is(err, errUnknown) && now.Sub(l.last) >= dropLogGap {
		l.last = now
		l.log.Warn("datagram dropped; further ones are counted but not logged for a while", "from", from, "error", err)
	}
}

// dropLogGap is the shortest time between two log lines about dropped datagrams, so that their sender cannot fill the
// log.
const dropLogGap = 10 * time.Second

// Counters are totals since the start of a Server or Client.
type Counters struct {
	// All datagrams sent and received, including dropped ones, and their bytes of UDP payload.
	SentDatagrams, SentBytes, ReceivedDatagrams, ReceivedBytes uint64

	// Datagrams that were dropped without an answer, by reason. Noise: not of this protocol, or truncated. Version:
	// another version of the protocol. Seal: failed authentication, because of another key or an alteration. Replay:
	// a duplicate, or too old. Unknown: of no session, or not from its session's address. Malformed: authentic, but
	// not as specified. Limit: a limit was reached, of authentic ones or of HELLOs of nodes that are not known.
	DroppedNoise, DroppedVersion, DroppedSeal, DroppedReplay, DroppedUnknown, DroppedMalformed, DroppedLimit uint64

	// Messages sent to and received from the other end, without repetitions.
	SentMessages, ReceivedMessages uint64
	// Repeats counts segments sent again, Duplicates segments received again.
	Repeats, Duplicates uint64
	// MalformedMessages counts complete messages that could not be decoded.
	MalformedMessages uint64

	// Sessions counts established sessions; Lost those that ended in silence; Replaced those that ended because a newer
	// client of their node connected.
	Sessions, Lost, Replaced uint64
	// SyncSteps counts steps of the table that were sent or applied, SyncRepairs steps that replaced the whole table
	// because the ends differed.
	SyncSteps, SyncRepairs uint64
}

// counters holds the values of Counters while they are being counted.
type counters struct {
	sentDatagrams, sentBytes, receivedDatagrams, receivedBytes atomic.Uint64

	noise, version, seal, replay, unknown, malformed, limit atomic.Uint64

	sentMessages, receivedMessages, repeats, duplicates, malformedMessages atomic.Uint64

	sessions, lost, replaced, syncSteps, syncRepairs atomic.Uint64
}

func (c *counters) snapshot() Counters {
	return Counters{
		SentDatagrams: c.sentDatagrams.Load(), SentBytes: c.sentBytes.Load(),
		ReceivedDatagrams: c.receivedDatagrams.Load(), ReceivedBytes: c.receivedBytes.Load(),
		DroppedNoise: c.noise.Load(), DroppedVersion: c.version.Load(), DroppedSeal: c.seal.Load(),
		DroppedReplay: c.replay.Load(), DroppedUnknown: c.unknown.Load(),
		DroppedMalformed: c.malformed.Load(), DroppedLimit: c.limit.Load(),
		SentMessages: c.sentMessages.Load(), ReceivedMessages: c.receivedMessages.Load(),
		Repeats: c.repeats.Load(), Duplicates: c.duplicates.Load(), MalformedMessages: c.malformedMessages.Load(),
		Sessions: c.sessions.Load(), Lost: c.lost.Load(), Replaced: c.replaced.Load(),
		SyncSteps: c.syncSteps.Load(), SyncRepairs: c.syncRepairs.Load(),
	}
}

// received counts a received datagram of n bytes.
func (c *counters) received(n int) {
	c.receivedDatagrams.Add(1)
	c.receivedBytes.Add(uint64(n))
}

// sent counts a sent datagram of n bytes.
func (c *counters) sent(n int) {
	c.sentDatagrams.Add(1)
	c.sentBytes.Add(uint64(n))
}

// drop counts a dropped datagram by the reason err.
func (c *counters) drop(err error) {
	switch {
	case errors.Is(err, errNoise):
		c.noise.Add(1)
	case errors.Is(err, errVersion):
		c.version.Add(1)
	case errors.Is(err, errSeal):
		c.seal.Add(1)
	case errors.Is(err, errReplay):
		c.replay.Add(1)
	case errors.Is(err, errUnknown):
		c.unknown.Add(1)
	case errors.Is(err, errLimit):
		c.limit.Add(1)
	default:
		c.malformed.Add(1)
	}
}

// progress tells how far the reader of a socket has come. Sessions ask it before they end for silence: on a machine
// with too little CPU the peer's datagrams may have arrived without having been read.
type progress struct {
	epoch time.Time
	at    atomic.Int64 // nanoseconds since epoch
}

func newProgress() *progress { return &progress{epoch: time.Now()} }

// reached reports that whatever arrived before t has been handled.
func (p *progress) reached(t time.Time) { p.at.Store(int64(t.Sub(p.epoch))) }

// handled returns a time before which all that arrived has been handled.
func (p *progress) handled() time.Time { return p.epoch.Add(time.Duration(p.at.Load())) }
