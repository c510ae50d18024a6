// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"wangell.loutres.me/internal/decide/lifecycle"
)

const (
	// maxPending bounds the incomplete wakes. A controller has fewer at a time, unless most of them hang.
	maxPending = 4096
	// settle is how long a successful wake counts as incomplete: its last phases follow the pod's first answers.
	settle = 5 * time.Second
	// callerWait is how long a complete wake is kept for the trace of the request that has waited for it, which
	// arrives separately.
	callerWait = 2 * time.Second
	// forget is how long a wake in progress is kept without news. It is longer than any wakeTimeout in use.
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
	until  time.Time         // when it counts as complete
	caller trace.SpanContext // span of the request that has waited; invalid if unknown
}

// put records the news of a wake, and returns the wake and whether it is complete. Without room, it counts as
// complete.
func (p pending) put(w lifecycle.Waterfall, now time.Time) (u unfinished, complete bool) {
	k := wake{w.Service, w.Number}
	before, known := p[k]
	u = unfinished{Waterfall: w, caller: before.caller}
	if hasFailed(w) || !known && len(p) >= maxPending {
		delete(p, k)
		return u, true
	}
	wait := settle
	if w.Result == lifecycle.ResultRunning {
		wait = forget
	} else if _, answered := w.At(lifecycle.PhaseFirstByte); answered {
		wait = callerWait
	}
	u.until = now.Add(wait)
	p[k] = u
	return u, false
}

// join records the request that has waited for the latest wake of a service. Only the first one counts.
func (p pending) join(service string, caller trace.SpanContext) {
	var latest wake
	for k := range p {
		if k.service == service && k.number >= latest.number {
			latest = k
		}
	}
	if u, ok := p[latest]; ok && !u.caller.IsValid() {
		u.caller = caller
		p[latest] = u
	}
}

// due removes and returns the wakes that are complete by now; all of them if everything is set.
func (p pending) due(now time.Time, everything bool) (out []unfinished) {
	for k, u := range p {
		if everything || !now.Before(u.until) {
			out = append(out, u)
			delete(p, k)
		}
	}
	return out
}

// hasFailed reports whether a wake has ended without a pod, so that no more news will follow.
func hasFailed(w lifecycle.Waterfall) bool {
	return w.Result == lifecycle.ResultFailed || w.Result == lifecycle.ResultCancelled
}
