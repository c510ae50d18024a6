// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"time"

	"wangell.loutres.me/internal/lifecycle"
)

const (
	// maxPending bounds the wakes that are waited for. A controller has fewer at a time, unless most of them hang.
	maxPending = 4096
	// settle is how long a wake that has succeeded is waited for: its last phases follow the pod's first answers.
	settle = 5 * time.Second
	// forget is how long a wake in progress is waited for without any news. It is longer than any wakeTimeout in use.
	forget = time.Hour
)

// wake names a wake.
type wake struct {
	service string
	number  uint64
}

// pending are the wakes that are not complete yet. Time is a parameter.
type pending map[wake]unfinished

type unfinished struct {
	lifecycle.Waterfall
	until time.Time // when it counts as complete
}

// put takes the news of a wake, and returns whether the wake is complete. If there is no room, it is.
func (p pending) put(w lifecycle.Waterfall, now time.Time) (complete bool) {
	k := wake{w.Service, w.Number}
	if _, known := p[k]; isComplete(w) || !known && len(p) >= maxPending {
		delete(p, k)
		return true
	}
	wait := settle
	if w.Result == lifecycle.ResultRunning {
		wait = forget
	}
	p[k] = unfinished{w, now.Add(wait)}
	return false
}

// due takes out the wakes that count as complete by now; all if everything is set.
func (p pending) due(now time.Time, everything bool) (out []lifecycle.Waterfall) {
	for k, u := range p {
		if everything || !now.Before(u.until) {
			out = append(out, u.Waterfall)
			delete(p, k)
		}
	}
	return out
}

// isComplete reports whether nothing more is to come of a wake.
func isComplete(w lifecycle.Waterfall) bool {
	if w.Result == lifecycle.ResultFailed || w.Result == lifecycle.ResultCancelled {
		return true
	}
	_, answered := w.At(lifecycle.PhaseFirstByte)
	return answered && w.Result == lifecycle.ResultWarm
}
