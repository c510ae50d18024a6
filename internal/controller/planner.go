// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

// planner gives services pods ahead of their use, by spec.sleep and their past. It belongs to the loop.
type planner struct {
	loop    *loop
	table   *table
	events  *hub
	deliver deliver
	rolls   bool                      // the runtime replaces pods of an old spec itself
	learnt  func(runtime.Key, string) // Config.Learnt; may be nil
}

// plan sets the foresight of a new or changed service, without an event for its state machine.
func (p *planner) plan(s *service, history string, now time.Time) {
	s.foresight.stop()
	dismissed := s.foresight.dismissed
	f, err := newForesight(s.wanted, history)
	if err != nil {
		p.events.report(s.key, SeverityWarning, err.Error()+": it begins anew")
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
		if p.learnt != nil {
			p.learnt(s.key, f.saved)
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
