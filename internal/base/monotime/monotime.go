// SPDX-License-Identifier: Apache-2.0

// Package monotime provides readings of CLOCK_MONOTONIC, the clock of bpf_ktime_get_ns, so that timestamps of eBPF
// programs and of Go programs on one machine can be compared.
package monotime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Time is a reading of CLOCK_MONOTONIC in nanoseconds. On Linux the clock starts at boot and does not count suspends.
// Zero means "not known". Times of different machines are not comparable.
type Time int64

// Now reads the clock.
func Now() Time {
	var ts unix.Timespec
	// With a valid clock and pointer, clock_gettime(2) does not fail.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return Time(ts.Nano())
}

// Sub returns the duration t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Add returns t+d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Wall converts t to wall-clock time, using the present difference between the clocks. Zero becomes the zero time.
func (t Time) Wall() time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Now().Add(-Now().Sub(t))
}
