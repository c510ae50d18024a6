// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

// Wake is a lifecycle.Waterfall for a browser.
type Wake struct {
	Service string `json:"s"`
	Number  uint64 `json:"n"`
	// Start is the Unix time of the first phase in milliseconds.
	Start    int64  `json:"start"`
	Result   string `json:"result"`
	Reason   string `json:"reason,omitempty"`
	Parked   uint32 `json:"parked"`
	Released uint32 `json:"released"`
	// Phases are pairs of a phase's index in All.Phases and the microseconds from the first phase to its end.
	Phases [][2]int64 `json:"ph"`
}

// wakeKey identifies a wake.
type wakeKey struct {
	service string
	number  uint64
}

// progress identifies the state of a wake: if it is equal, nothing has changed.
type progress struct {
	phases   int
	result   lifecycle.Result
	released uint32
}

// wakeLog remembers which news of the kept wakes were sent.
type wakeLog map[wakeKey]progress

// news returns the wakes that have changed since the last call, and forgets those that are no longer kept.
func (l wakeLog) news(kept []lifecycle.Waterfall) (out []Wake) {
	there := make(map[wakeKey]bool, len(kept))
	for _, w := range kept {
		k, p := wakeKey{w.Service, w.Number}, progress{len(w.Phases), w.Result, w.Released}
		there[k] = true
		if old, known := l[k]; !known || old != p {
			l[k] = p
			out = append(out, wakeOf(w))
		}
	}
	for k := range l {
		if !there[k] {
			delete(l, k)
		}
	}
	return out
}

// phaseIndex has the place of each phase in lifecycle.PhaseNames.
var phaseIndex = func() map[lifecycle.PhaseName]int64 {
	out := map[lifecycle.PhaseName]int64{}
	for i, p := range lifecycle.PhaseNames() {
		out[p] = int64(i)
	}
	return out
}()

func wakeOf(w lifecycle.Waterfall) Wake {
	out := Wake{
		Service: w.Service, Number: w.Number, Start: w.Start.UnixMilli(), Result: string(w.Result), Reason: w.Reason,
		Parked: w.Parked, Released: w.Released, Phases: make([][2]int64, 0, len(w.Phases)),
	}
	for _, p := range w.Phases {
		out.Phases = append(out.Phases, [2]int64{phaseIndex[p.Name], p.At.Microseconds()})
	}
	return out
}

// Event is a status.Event for a browser.
type Event struct {
	Time     int64  `json:"t"` // Unix milliseconds
	Kind     string `json:"kind"`
	Service  string `json:"s,omitempty"`
	Severity string `json:"sev,omitempty"`
	Text     string `json:"text,omitempty"`
	Node     string `json:"node,omitempty"`
}

const (
	// keptEvents is the number of events that a browser gets when it connects.
	keptEvents = 200
	// maxText bounds the text of an event, in bytes.
	maxText = 1000
)

// eventLog keeps the newest events.
type eventLog struct {
	kept  []Event // oldest first
	fresh int     // how many of the last ones were not sent yet
}

// add adds an event, unless it only reports the progress of a pull, which is in the message of the service.
func (l *eventLog) add(e status.Event) {
	if e.Kind == status.EventPull {
		return
	}
	text := e.Text
	if e.Kind == status.EventState {
		text = e.State
	}
	if len(text) > maxText {
		text = text[:maxText]
	}
	l.kept = append(l.kept, Event{
		Time: e.Time.UnixMilli(), Kind: string(e.Kind), Service: string(e.Service), Severity: e.Severity, Text: text,
		Node: e.Node,
	})
	l.fresh = min(l.fresh+1, keptEvents)
	if len(l.kept) > 2*keptEvents {
		l.kept = append([]Event(nil), l.kept[len(l.kept)-keptEvents:]...)
	}
}

// last returns the kept events, oldest first.
func (l *eventLog) last() []Event { return l.kept[max(0, len(l.kept)-keptEvents):] }

// news returns the events since the last call.
func (l *eventLog) news() []Event {
	out := l.kept[len(l.kept)-l.fresh:]
	l.fresh = 0
	return out
}
