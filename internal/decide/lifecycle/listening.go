// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

// listening handles a report from a pod's home node that its socket listens.
func (t *transition) listening(e Listening) {
	t.back(e.Ref) // its node is heard
	p := t.pod(e.Ref)
	if p != nil {
		p.unset(podDeaf)
		t.opened(p, e.Port)
		if len(t.spec.More) == 0 {
			p.sockets = sockets{}
		}
	}
	if p != nil && p.is(podProbed) {
		p.unset(podProbed)
		p.answer = ""
		t.mark(p.ref, PhaseReady, e.At)
	}
	switch {
	case p == nil || p.life == lifeExited:
	case p.life > lifeServing:
		if p.is(podSleeping) && e.At <= t.sleep.at {
			t.answered(p, e.At) // it listened before sleep was requested, so its wake has succeeded
		}
	case p.life == lifeServing:
		if p.progress < podConfirmed {
			p.progress, p.deadline, t.next.wake = podConfirmed, 0, nil
			t.clearDeadlines()
			t.awaitPorts(t.now.Add(t.spec.WakeTimeout))
		}
	case !t.waitsForPort(p):
		t.serve(p, e.At)
	}
}

// unready handles a report that a pod listens but is not ready, or no longer is.
func (t *transition) unready(e Unready) {
	t.back(e.Ref) // its node is heard
	p := t.pod(e.Ref)
	if p == nil || p.life > lifeServing {
		return
	}
	t.mark(p.ref, PhaseListening, e.At)
	p.set(podProbed)
	p.answer, p.sockets = e.Answer, sockets{}
	if e.Failed && (p.life != lifeServing || p.progress != podConfirmed) {
		was := p.life
		t.stop(p, p.grace)
		t.lost(p, was, "the pod did not start in time: "+p.lastAnswer())
		return
	}
	if p.life != lifeServing || p.progress != podConfirmed {
		return
	}
	p.unconfirm()
	t.report(v1alpha1.EventProblem, Warning, "a pod gets no new connections: its readinessProbe fails: %s", p.lastAnswer())
}

// deaf handles a pod that served and no longer listens. Clients wait until it listens again or its process has
// ended.
func (t *transition) deaf(e Deaf) {
	p := t.pod(e.Ref)
	if p == nil {
		return
	}
	p.open &^= Only(e.Port)
	if p.life != lifeServing || p.progress != podConfirmed {
		return
	}
	if p.open != 0 {
		t.note("a pod gets no new connections for %s: it no longer listens there", t.spec.named(e.Port))
		return
	}
	p.set(podDeaf)
	p.unconfirm()
	t.note("a pod gets no new connections: it no longer listens on port %d", t.spec.Port)
}

// serve makes a starting pod that listens a serving one.
func (t *transition) serve(p *pod, at monotime.Time) {
	replaces := p.life == lifeReplacing
	p.life, p.progress, p.deadline, p.served = lifeServing, podConfirmed, 0, t.now
	t.next.wake = nil
	t.awaitPorts(t.start.deadline)
	switch {
	case replaces:
		t.switchOver()
	case t.state != Waking:
		t.message = ""
		t.note("%s serve", counted(uint32(t.Serving()), "pod"))
	default:
		t.answered(p, at)
		t.state, t.message, t.backoff.wakes, t.backoff.wakeRetry, t.start.deadline = Warm, "", 0, 0, 0
		if t.timeline != nil {
			what := "listens"
			if p.phases[phaseIndex(PhaseReady)] != 0 {
				what = "is ready"
			}
			t.note("warm: %s %s after the SYN", what, ms(at.Sub(t.timeline.at[0])))
		} else {
			t.note("warm")
		}
		t.clearDeadlines()
	}
}
