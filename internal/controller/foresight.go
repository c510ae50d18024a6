// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	"wangell.loutres.me/internal/decide/forecast"
)

// Reasons for a pod without demand: Outlook.Wanted.
const (
	WantedBySchedule = "schedule"
	WantedByForecast = "forecast"
)

// wantedWhy are these reasons as users read them.
var wantedWhy = map[string]string{
	WantedBySchedule: "sleep.schedule wants one", WantedByForecast: "the service is likely to be used soon",
}

// foresightCheck is the longest time between two decisions: clocks may be set.
const foresightCheck = time.Hour

// Outlook says when a service has a pod without demand.
type Outlook struct {
	// Wanted is WantedBySchedule or WantedByForecast while it has one for that reason; otherwise empty.
	Wanted string `json:"wanted,omitempty"`
	// Change is when that changes next if nobody uses the service; zero if it does not.
	Change time.Time `json:"change,omitzero"`
	// Basis is a forecast.Basis; empty without spec.sleep.predict.
	Basis string `json:"basis,omitempty"`
	// IdleTimes is the number of times between uses that are known.
	IdleTimes int `json:"idleTimes,omitempty"`
	// Prewarm is when a pod is to be ready after the last use, and Keep for how long, in seconds.
	Prewarm float64 `json:"prewarmSeconds,omitempty"`
	Keep    float64 `json:"keepSeconds,omitempty"`
}

// foresight decides from spec.sleep and the past of a service when it needs a pod. It belongs to the loop.
type foresight struct {
	periods []forecast.Period
	history *forecast.History // nil without spec.sleep.predict
	fixed   time.Duration     // idleTimeout
	next    forecast.Forecast // from history
	saved   string            // history as it is to be kept
	unsure  bool              // history is an earlier controller's, and the service may have been used since

	wanted    string    // Outlook.Wanted
	change    time.Time // Outlook.Change
	dismissed time.Time // a user put the service to sleep: no pod is wanted before this time, unless the service is used
	timer     *time.Timer
}

// newForesight returns the foresight for a service. history is forecast.History.Encode of an earlier controller.
func newForesight(w *wanted, history string) (f foresight, err error) {
	f.fixed = time.Duration(w.spec.Spec.IdleTimeout) * time.Second
	s := w.spec.Spec.Sleep
	if s == nil {
		return f, nil
	}
	for i := range s.Schedule {
		from, to, zone, err := s.Schedule[i].Times()
		if err != nil {
			return f, fmt.Errorf("sleep.schedule[%d]: %w", i, err) // it was validated
		}
		f.periods = append(f.periods, forecast.Period{From: from, To: to, Zone: zone})
	}
	if !s.Predict {
		return f, nil
	}
	if f.history, err = forecast.Decode(history); err != nil {
		f.history = &forecast.History{}
	}
	f.saved, f.next = f.history.Encode(), f.history.Next(f.fixed)
	return f, err
}

// decide returns why a pod is wanted at a time, and when that changes.
func (f *foresight) decide(now time.Time) (reason string, change time.Time) {
	if now.Before(f.dismissed) {
		return "", f.dismissed
	}
	wanted, change := forecast.Wanted(f.periods, now)
	if wanted {
		reason = WantedBySchedule
	}
	if f.history == nil {
		return reason, change
	}
	wanted, next := f.next.Wanted(f.history.Last(), now)
	if wanted && reason == "" {
		reason = WantedByForecast
	}
	if !next.IsZero() && (change.IsZero() || next.Before(change)) {
		change = next
	}
	return reason, change
}

// outlook returns the Outlook for users; nil if the manifest does not ask for one.
func (f *foresight) outlook() *Outlook {
	if len(f.periods) == 0 && f.history == nil {
		return nil
	}
	o := &Outlook{Wanted: f.wanted, Change: f.change}
	if f.history != nil {
		o.Basis, o.IdleTimes = string(f.next.Basis), f.history.Len()
		o.Prewarm, o.Keep = f.next.Prewarm.Seconds(), f.next.Keep.Seconds()
	}
	return o
}

// stop stops the timer.
func (f *foresight) stop() {
	if f.timer != nil {
		f.timer.Stop()
	}
}
