// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "wangell.loutres.me/internal/monotime"

// listening goes on after a pod's home node has reported that its socket listens.
func (t *transition) listening(e Listening) {
	t.back(e.Ref) // its node is heard
	p := t.pod(e.Ref)
	switch {
	case p == nil || p.life == lifeExited:
	case p.life > lifeServing:
		if p.sleeping && e.At <= t.sleep.at {
			t.answered(p, e.At) // it listened before sleep was requested, so its wake has succeeded
		}
	case p.life == lifeServing:
		if p.progress < podConfirmed {
			p.progress, p.deadline, t.next.wake = podConfirmed, 0, nil
			t.clearDeadlines()
		}
	default:
		t.serve(p, e.At)
	}
}

// serve makes a starting pod that listens a serving one.
func (t *transition) serve(p *pod, at monotime.Time) {
	replaces := p.life == lifeReplacing
	p.life, p.progress, p.deadline = lifeServing, podConfirmed, 0
	t.next.wake = nil
	switch {
	case replaces:
		t.switchOver()
	case t.state != Waking:
		t.message = ""
		t.report(Info, "%s serve", counted(uint32(t.Serving()), "pod"))
	default:
		t.answered(p, at)
		t.state, t.message, t.backoff.wakes, t.backoff.wakeRetry, t.start.deadline = Warm, "", 0, 0, 0
		if t.timeline != nil {
			t.report(Info, "warm: listens %s after the SYN", ms(at.Sub(t.timeline.at[0])))
		} else {
			t.report(Info, "warm")
		}
		t.clearDeadlines()
	}
}
