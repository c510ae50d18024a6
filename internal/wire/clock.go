// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// clockSamples is how many exchanges the estimate of a peer's clock looks back.
const clockSamples = 8

// bootID names a run of a kernel: /proc/sys/kernel/random/boot_id, random(4), 16 bytes. Processes with the same one
// share CLOCK_MONOTONIC.
type bootID [16]byte

func readBootID() (id bootID, err error) {
	const path = "/proc/sys/kernel/random/boot_id"
	b, err := os.ReadFile(path)
	if err != nil {
		return id, fmt.Errorf("wire: boot ID of this machine: %w", err)
	}
	text := strings.ReplaceAll(strings.TrimSpace(string(b)), "-", "")
	if n, err := hex.Decode(id[:], []byte(text)); err != nil || n != len(id) {
		return id, fmt.Errorf("wire: boot ID of this machine: %s holds %q, not a UUID", path, b)
	}
	return id, nil
}

// exchange is the times of a question and its answer, as in NTP (RFC 5905 §8): asked and received are
// readings of our clock, arrived and answered of the peer's.
type exchange struct{ asked, arrived, answered, received monotime.Time }

// clockFilter estimates the peer's clock from exchanges; the one with the shortest round trip of the
// last few is believed, because queues only ever add.
type clockFilter struct {
	rtt, offset [clockSamples]time.Duration
	n           int // exchanges so far
}

// add takes an exchange. What cannot be (a negative round trip) is ignored.
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

// best returns the shortest round trip of the last few and what to add to the peer's times to get ours.
func (f *clockFilter) best() (rtt, offset time.Duration) {
	for i := range min(f.n, clockSamples) {
		if i == 0 || f.rtt[i] < rtt {
			rtt, offset = f.rtt[i], f.offset[i]
		}
	}
	return rtt, offset
}

// shiftTime moves a time of the peer to our clock. Zero (not known) stays, nothing known becomes zero.
func shiftTime(t *monotime.Time, d time.Duration) {
	if *t != 0 {
		*t = max(t.Add(d), 1)
	}
}

// timed are the messages that hold times.
type timed interface{ shift(d time.Duration) }

func (m *Wake) shift(d time.Duration) {
	shiftTime(&m.SYNSeen, d)
	shiftTime(&m.Told, d)
}

func (m *Listening) shift(d time.Duration) { shiftTime(&m.At, d) }

func (m *Trace) shift(d time.Duration) {
	shiftTime(&m.Released, d)
	shiftTime(&m.FirstSYNACK, d)
	shiftTime(&m.FirstByte, d)
}

func (m *Stats) shift(d time.Duration) {
	for i := range m.Pods {
		shiftTime(&m.Pods[i].LastPacket, d)
	}
}

func (m *Usage) shift(d time.Duration) {
	for i := range m.Pods {
		shiftTime(&m.Pods[i].At, d)
	}
}

func (m *Idle) shift(d time.Duration)      { shiftTime(&m.LastPacket, d) }
func (m *Quiet) shift(d time.Duration)     { shiftTime(&m.LastPacket, d) }
func (m *PodReport) shift(d time.Duration) { shiftTime(&m.At, d) }
