// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"time"
)

// announceAgain are the pauses before an announcement is repeated, as a frame may be lost.
var announceAgain = [...]time.Duration{200 * time.Millisecond, time.Second}

// repeatTogether is how long a due announcement may wait for others, so that many VIPs cost few wake-ups.
const repeatTogether = 10 * time.Millisecond

// repeats are the announcements to send again. Thousands of VIPs may be announced at once, one by one, so they share
// one goroutine.
type repeats struct {
	queues [len(announceAgain)][]repeat // by pause; what is due first comes first
}

// repeat is the next announcement of a VIP.
type repeat struct {
	vip netip.Addr
	due time.Time
}

// push notes that VIPs have been announced, for the n-th time not counting the first one.
func (r *repeats) push(n int, vips []netip.Addr, now time.Time) {
	for _, vip := range vips {
		r.queues[n] = append(r.queues[n], repeat{vip, now.Add(announceAgain[n])})
	}
}

// empty reports whether nothing is left to repeat.
func (r *repeats) empty() bool { return r.next().IsZero() }

// next returns when the next announcement is due, or the zero time if none is left.
func (r *repeats) next() (next time.Time) {
	for _, q := range r.queues {
		if len(q) > 0 && (next.IsZero() || q[0].due.Before(next)) {
			next = q[0].due
		}
	}
	return next
}

// take returns the VIPs whose announcement is due.
func (r *repeats) take(now time.Time) (due []netip.Addr) {
	// From the last pause to the first, so that what is pushed is not taken again.
	for n := len(r.queues) - 1; n >= 0; n-- {
		first := len(due)
		for len(r.queues[n]) > 0 && !r.queues[n][0].due.After(now) {
			due = append(due, r.queues[n][0].vip)
			r.queues[n] = r.queues[n][1:]
		}
		if len(r.queues[n]) == 0 {
			r.queues[n] = nil // releases the array
		}
		if n+1 < len(r.queues) {
			r.push(n+1, due[first:], now)
		}
	}
	return due
}
