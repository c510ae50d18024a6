// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"math"
	"slices"
	"time"
)

const (
	// Bin is the width of a bin of the histogram, and the shortest time without a packet that counts as idle.
	Bin = time.Minute
	// Range is the longest idle time in the histogram, as in the paper.
	Range = 4 * time.Hour

	bins = int(Range / Bin)
	// most is the number of idle times at which all counts of a histogram are halved, so that older ones fade.
	most = 500
	// recents is the number of idle times kept in order, for the time series.
	recents = 16
	// longest bounds an idle time: a year.
	longest = 365 * 24 * time.Hour
)

// History is what is known of the uses of a service. Its size is bounded. The zero value is empty.
type History struct {
	counts         [bins]uint16
	within, beyond int             // idle times in the histogram, and longer ones
	recent         []time.Duration // the last ones, oldest first
	last           time.Time       // when the service was last used; zero if that is not known
}

// Last returns when the service was last used; zero if that is not known.
func (h *History) Last() time.Time { return h.last }

// Len returns the number of idle times behind the forecast. Older ones have faded.
func (h *History) Len() int { return h.within + h.beyond }

// Used records a use of the service. It reports whether the use ended an idle time. Times before the last one are
// ignored, and idle times of more than a year count as a year.
func (h *History) Used(at time.Time) bool {
	if !at.After(h.last) {
		return false
	}
	idle := at.Sub(h.last)
	first := h.last.IsZero()
	h.last = at
	if first || idle < Bin {
		return false
	}
	h.add(min(idle, longest))
	return true
}

// Skip records a use like Used, but ignores the time before it: uses in it may have been missed.
func (h *History) Skip(at time.Time) {
	if at.After(h.last) {
		h.last = at
	}
}

// add adds an idle time.
func (h *History) add(idle time.Duration) {
	if len(h.recent) == recents {
		h.recent = slices.Delete(h.recent, 0, 1)
	}
	h.recent = append(h.recent, idle.Truncate(time.Second))
	if idle < Range {
		h.counts[idle/Bin]++
		h.within++
	} else {
		h.beyond++
	}
	if h.Len() >= most {
		h.fade()
	}
}

// fade halves all counts.
func (h *History) fade() {
	h.within, h.beyond = 0, h.beyond/2
	for i := range h.counts {
		h.counts[i] /= 2
		h.within += int(h.counts[i])
	}
}

// variation returns the coefficient of variation of the counts of the bins: high if the idle times are alike. It is 0
// for an empty histogram.
func (h *History) variation() float64 {
	if h.within == 0 {
		return 0
	}
	mean, sum := float64(h.within)/float64(bins), 0.0
	for _, c := range h.counts {
		sum += (float64(c) - mean) * (float64(c) - mean)
	}
	return math.Sqrt(sum/float64(bins)) / mean
}

// percentile returns the bin in which a share of the idle times of the histogram is reached.
func (h *History) percentile(share float64) int {
	sum := 0
	for i, c := range h.counts {
		if sum += int(c); float64(sum) >= share*float64(h.within) && sum > 0 {
			return i
		}
	}
	return bins - 1
}

// smoothed forecasts the next idle time by simple exponential smoothing of the last ones.
func (h *History) smoothed() time.Duration {
	const weight = 0.3 // of the newest one
	level := float64(h.recent[0])
	for _, idle := range h.recent[1:] {
		level += weight * (float64(idle) - level)
	}
	return time.Duration(level)
}
