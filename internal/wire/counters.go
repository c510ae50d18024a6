// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"sync/atomic"
	"time"
)

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
	// not as specified. Limit: authentic, but a limit was reached.
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
