// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/forecast"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

// wantedWhy are these reasons as users read them.
var wantedWhy = map[string]string{
	status.WantedBySchedule: "sleep.schedule wants one", status.WantedByForecast: "the service is likely to be used soon",
}

// foresightCheck is the longest time between two decisions: clocks may be set.
const foresightCheck = time.Hour

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
		reason = status.WantedBySchedule
	}
	if f.history == nil {
		return reason, change
	}
	wanted, next := f.next.Wanted(f.history.Last(), now)
	if wanted && reason == "" {
		reason = status.WantedByForecast
	}
	if !next.IsZero() && (change.IsZero() || next.Before(change)) {
		change = next
	}
	return reason, change
}

// outlook returns the Outlook for users; nil if the manifest does not ask for one.
func (f *foresight) outlook() *status.Outlook {
	if len(f.periods) == 0 && f.history == nil {
		return nil
	}
	o := &status.Outlook{Wanted: f.wanted, Change: f.change}
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

// planner gives services pods ahead of their use, by spec.sleep and their past. It belongs to the loop.
type planner struct {
	loop      *loop
	table     *table
	events    *hub
	deliver   deliver
	rolls     bool                       // the runtime replaces pods of an old spec itself
	onHistory func(v1alpha1.Key, string) // Config.OnHistory; may be nil
}

// plan sets the foresight of a new or changed service, without an event for its state machine.
func (p *planner) plan(s *service, history string, now time.Time) {
	s.foresight.stop()
	dismissed := s.foresight.dismissed
	f, err := newForesight(s.wanted, history)
	if err != nil {
		p.events.report(s.key, v1alpha1.EventProblem, status.SeverityWarning, err.Error()+": it begins anew")
	}
	f.dismissed = dismissed
	s.foresight = f
	p.look(s, now)
}

// look decides whether a pod is wanted, and schedules the next look. It reports whether the answer has changed.
func (p *planner) look(s *service, now time.Time) (changed bool) {
	f := &s.foresight
	f.stop()
	before := f.wanted
	f.wanted, f.change = f.decide(now)
	if !f.change.IsZero() {
		f.timer = time.AfterFunc(min(max(f.change.Sub(now), time.Millisecond), foresightCheck), func() {
			p.loop.post(func() {
				if p.table.services[s.key] == s {
					p.foresee(s, time.Now())
				}
			})
		})
	}
	return f.wanted != before
}

// foresee is look for a service whose state machine runs.
func (p *planner) foresee(s *service, now time.Time) {
	if p.look(s, now) && !s.machine.Deleted() {
		p.deliver(s, lifecycle.SpecChanged{Spec: s.lifecycle(p.rolls)})
	}
}

// used records a use of a service, as of its last packet. woken is set if it had no pod before.
func (p *planner) used(s *service, woken bool) {
	f := &s.foresight
	if s.lastPacket == 0 || f.history == nil && f.dismissed.IsZero() {
		return
	}
	at, now := s.lastPacket.Wall(), time.Now()
	f.dismissed = time.Time{}
	switch {
	case f.history == nil:
		p.foresee(s, now)
		return
	case f.unsure && !woken:
		f.history.Skip(at)
	case f.history.Used(at):
		f.next = f.history.Next(f.fixed)
		p.keepHistory(s)
	}
	f.unsure = false
	reason, change := f.decide(now)
	if reason != f.wanted || f.change.IsZero() || change.Before(f.change) {
		p.foresee(s, now)
		return
	}
	f.change = change // its timer comes earlier, and looks again
}

// keepHistory saves the history of a service for the next controller.
func (p *planner) keepHistory(s *service) {
	if f := &s.foresight; f.history != nil && f.saved != f.history.Encode() {
		f.saved = f.history.Encode()
		if p.onHistory != nil {
			p.onHistory(s.key, f.saved)
		}
	}
}

// dismiss keeps a service without a pod until its next use, or until the foreseen times change: a user has put it to
// sleep.
func (p *planner) dismiss(s *service) {
	if f := &s.foresight; f.wanted != "" {
		f.dismissed = f.change
		if f.change.IsZero() {
			f.dismissed = time.Now().Add(foresightCheck)
		}
		p.foresee(s, time.Now())
	}
}
