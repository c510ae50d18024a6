// SPDX-License-Identifier: Apache-2.0

// Package monotime gives times as the kernel's CLOCK_MONOTONIC counts them, the clock that
// bpf_ktime_get_ns reads, so that what an eBPF program stamped and what a Go program stamped
// can be subtracted from one another.
package monotime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time is a reading of CLOCK_MONOTONIC in nanoseconds since an unspecified start (on Linux,
// boot, not counting suspend). Zero means "not known". Times of two machines are not comparable.
type Time int64

// Now reads the clock.
func Now() Time {
	var ts unix.Timespec
	// CLOCK_MONOTONIC cannot fail with a valid pointer (clock_gettime(2)).
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return Time(ts.Nano())
}

// Sub returns the duration t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Add returns t+d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Wall converts t to wall-clock time, by the difference between both clocks now.
func (t Time) Wall() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Now().Add(-Now().Sub(t))
}
