// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"sync/atomic"
	"time"
)

// dropLogGap is how often at most a log tells of dropped datagrams: whoever sends them must not fill it.
const dropLogGap = 10 * time.Second

// Counters are totals since the start of a Server or Client.
type Counters struct {
	// Datagrams that were sent, and that came, whatever they were; and their bytes (UDP payload).
	SentDatagrams, SentBytes, ReceivedDatagrams, ReceivedBytes uint64

	// Datagrams that were dropped without an answer: Noise is not of this protocol (or cut short),
	// Version of another version, Seal did not open (another key, or altered), Replay came before or
	// too late, Unknown is of no session or from another address than its session's, Malformed opened
	// but is not as specified, Limit opened but there was no room.
	DroppedNoise, DroppedVersion, DroppedSeal, DroppedReplay, DroppedUnknown, DroppedMalformed, DroppedLimit uint64

	// Messages to and from the other side's handlers, repeats not counted.
	SentMessages, ReceivedMessages uint64
	// Repeats are segments sent again; Duplicates are segments that came again.
	Repeats, Duplicates uint64
	// MalformedMessages came whole but did not decode.
	MalformedMessages uint64

	// Sessions that began; Lost of them fell silent; Replaced gave way to a newer client of their node.
	Sessions, Lost, Replaced uint64
	// SyncSteps are steps of the table that were sent or taken; SyncRepairs are whole tables because a
	// hash differed.
	SyncSteps, SyncRepairs uint64
}

// counters are Counters in the making.
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

// received counts a datagram that came.
func (c *counters) received(n int) {
	c.receivedDatagrams.Add(1)
	c.receivedBytes.Add(uint64(n))
}

// sent counts a datagram that went.
func (c *counters) sent(n int) {
	c.sentDatagrams.Add(1)
	c.sentBytes.Add(uint64(n))
}

// drop counts a datagram that was not accepted.
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
