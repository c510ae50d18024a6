// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"time"
)

// Settings of the policy: the paper's, where it has one.
const (
	head, tail      = 0.05, 0.99 // percentiles of idle times between which a pod is ready
	margin          = 0.10       // how much earlier and longer the pod is ready, as a share
	seriesMargin    = 0.15       // the same for a forecast of the time series
	leastVariation  = 2          // least variation of the bins' counts in a representative histogram
	mostBeyond      = 0.5        // share of idle times beyond the histogram at which the time series is used
	leastIdle       = 4          // idle times before which nothing is forecast
	shortestAbsence = 2 * Bin    // a pod that would be started again sooner is kept
)

// Linger is how long a service is kept after each use: only then does it count as idle.
const Linger = Bin

// Basis tells what a forecast is made from.
type Basis string

// The bases of forecasts.
const (
	Histogram Basis = "histogram" // the idle times are alike
	Series    Basis = "series"    // most idle times are longer than the histogram
	Unknown   Basis = "unknown"   // there are too few idle times, or they are too different
)

// Forecast says when a pod should be ready, in times since the last use of the service: during Linger, and from Prewarm
// for Keep.
type Forecast struct {
	Prewarm, Keep time.Duration
	Basis         Basis
}

// Next forecasts the next use of the service. Without enough evidence, the service is kept for a fixed time.
func (h *History) Next(fixed time.Duration) Forecast {
	n := h.Len()
	switch {
	case n < leastIdle:
	case float64(h.beyond) >= mostBeyond*float64(n):
		next := float64(h.smoothed())
		return between(time.Duration((1-seriesMargin)*next), time.Duration((1+seriesMargin)*next), Series)
	case h.variation() >= leastVariation:
		from, to := time.Duration(h.percentile(head))*Bin, time.Duration(h.percentile(tail)+1)*Bin
		return between(time.Duration((1-margin)*float64(from)), time.Duration((1+margin)*float64(to)), Histogram)
	}
	return Forecast{Keep: fixed, Basis: Unknown}
}

// between returns the forecast that the next use comes between two idle times.
func between(from, to time.Duration, b Basis) Forecast {
	if from < Linger+shortestAbsence {
		from = 0
	}
	return Forecast{Prewarm: from, Keep: to - from, Basis: b}
}

// Warm reports whether a pod is ready after a given idle time.
func (f Forecast) Warm(idle time.Duration) bool {
	return idle < Linger || idle >= f.Prewarm && idle < f.Prewarm+f.Keep
}

// Spent returns how long a pod has been ready when the service has been idle for a given time.
func (f Forecast) Spent(idle time.Duration) time.Duration {
	if f.Prewarm <= Linger {
		return min(idle, max(Linger, f.Prewarm+f.Keep))
	}
	return min(idle, Linger) + max(0, min(idle-f.Prewarm, f.Keep))
}

// Wanted reports whether a pod should be ready at a time, and when that changes next; zero if it does not. last is
// the time of the last use. Linger is not included.
func (f Forecast) Wanted(last, now time.Time) (wanted bool, change time.Time) {
	if last.IsZero() {
		return false, time.Time{}
	}
	switch from, to := last.Add(f.Prewarm), last.Add(f.Prewarm+f.Keep); {
	case now.Before(from):
		return false, from
	case now.Before(to):
		return true, to
	}
	return false, time.Time{}
}
