// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// clockSamples is the number of most recent exchanges from which the peer's clock is estimated.
const clockSamples = 8

// bootID is monotime.BootID in binary.
type bootID [16]byte

func readBootID() (id bootID, err error) {
	text, err := monotime.BootID()
	if err != nil {
		return id, fmt.Errorf("wire: boot ID of this machine: %w", err)
	}
	if n, err := hex.Decode(id[:], []byte(strings.ReplaceAll(text, "-", ""))); err != nil || n != len(id) {
		return id, fmt.Errorf("wire: boot ID of this machine: %q is no UUID", text)
	}
	return id, nil
}

// exchange holds the four times of a request and its answer, as in NTP (RFC 5905 section 8). asked and received are
// readings of the local clock, arrived and answered of the peer's.
type exchange struct{ asked, arrived, answered, received monotime.Time }

// clockFilter estimates the peer's clock. Of the last clockSamples exchanges it uses the one with the shortest round
// trip, because queueing can only lengthen a round trip and with it the error of the estimate.
type clockFilter struct {
	rtt, offset [clockSamples]time.Duration
	n           int // exchanges added so far
}

// add records an exchange. An exchange with a negative round trip is ignored.
func (f *clockFilter) add(e exchange) {
	there, back := e.arrived.Sub(e.asked), e.received.Sub(e.answered)
	rtt := there + back
	if rtt < 0 {
		return
	}
	i := f.n % clockSamples
	f.rtt[i], f.offset[i] = rtt, (back-there)/2
	f.n++
}

// best returns the shortest recent round trip and the offset that converts the peer's times to the local clock. Both
// are zero before the first exchange.
func (f *clockFilter) best() (rtt, offset time.Duration) {
	for i := range min(f.n, clockSamples) {
		if i == 0 || f.rtt[i] < rtt {
			rtt, offset = f.rtt[i], f.offset[i]
		}
	}
	return rtt, offset
}

// shiftTime converts a time to the local clock. Zero means "not known" and stays zero; a known time stays at least 1.
func shiftTime(t *monotime.Time, d time.Duration) {
	if *t != 0 {
		*t = max(t.Add(d), 1)
	}
}

// timed is implemented by messages that contain times. times calls f with each of them.
type timed interface {
	times(f func(*monotime.Time))
}

// convertTimes converts the times of a message to the local clock, which is ahead of the peer's by offset. None is
// later than latest: what a daemon reports has happened, and a time to come would outlast all later reports.
func convertTimes(m timed, offset time.Duration, latest monotime.Time) {
	m.times(func(t *monotime.Time) {
		shiftTime(t, offset)
		*t = min(*t, latest)
	})
}
