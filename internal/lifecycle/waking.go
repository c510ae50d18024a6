// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"time"

	"wangell.loutres.me/internal/monotime"
)

func (t *turn) wakeAsked(e WakeAsked) {
	switch {
	case t.deleted:
		t.refuse = "the service was removed"
	case t.state == Cold:
		t.begin(e)
	case t.state == Failed && t.now < t.retryAt:
		t.refuse = fmt.Sprintf("%s; next try in %s", t.message, roundUp(t.retryAt.Sub(t.now)))
	case t.state == Failed:
		t.begin(e)
	case t.state == Waking:
		t.want = max(t.want, t.spec.burst(e.Parked))
		if s := t.story; s != nil && e.Parked > s.parked {
			s.parked, t.record = e.Parked, true
		}
	case t.state == Warm:
		t.publish = true
		t.await(e)
	case t.sleepsSoftly() && !t.sleepAsked:
		if t.pending == nil && t.count(func(p *pod) bool { return p.sleeping && p.confirmed && !p.exited }) == 0 {
			t.pending = &e
		}
		t.serveAgain("a new client came")
	case t.spec.Rolls && !t.sleepsSoftly():
		t.pending = &e
		t.asleep()
	case t.pending == nil:
		t.pending = &e
		t.wakeBy = t.now.Add(t.longestGrace() + t.spec.WakeTimeout)
	case e.Parked > t.pending.Parked:
		t.pending.Parked = e.Parked
	}
}

// await gives the pods that were found running a deadline to listen, if none of the others does and a client waits.
func (t *turn) await(e WakeAsked) {
	if t.Serving() > 0 {
		return
	}
	if t.pending == nil {
		t.pending = &e
	}
	for _, p := range t.pods {
		if p.serves() && p.by == 0 {
			p.by = t.now.Add(t.spec.WakeTimeout)
		}
	}
}

// longestGrace is how long the service's pods may take to end.
func (m *Machine) longestGrace() time.Duration {
	longest := time.Duration(0)
	for _, p := range m.pods {
		if p.sleeping {
			longest = max(longest, p.grace)
		}
	}
	return longest
}

// begin begins a wake. settle starts its pods, at once or when the pod before it is gone.
func (t *turn) begin(e WakeAsked) {
	t.beginWaking(max(t.spec.burst(e.Parked), t.again))
	t.wakes++
	t.tell(&story{number: t.wakes, result: ResultRunning, parked: e.Parked})
	if e.SYNSeen == 0 {
		e.SYNSeen = t.now
	}
	t.story.mark(PhaseSYNSeen, e.SYNSeen)
	t.story.mark(PhaseTold, e.Told)
	t.story.mark(PhaseHandled, t.now)
	t.record = true
	t.report(Info, "wakes: %s parked", counted(e.Parked, "connection request"))
}

// beginAsked begins to start pods for which no client asked. There is no waterfall: it begins with a SYN.
func (t *turn) beginAsked(n int, why string) {
	t.beginWaking(n)
	t.endStory()
	t.report(Info, "starts %s: %s", counted(uint32(t.want), "pod"), why)
}

func (t *turn) beginWaking(n int) {
	t.state, t.message, t.want, t.again = Waking, "", t.spec.clamp(n), 0
	t.wakeBy = t.now.Add(t.spec.Grace + t.spec.WakeTimeout) // settle sets it anew when a pod starts
	t.startAt, t.tries, t.lastErr = 0, 0, nil
}

func (t *turn) startFailed(e StartFailed) {
	p := t.pod(e.Ref)
	switch {
	case p == nil:
	case p.listened || p.state == podStopping:
		// It ran all the same: what is left of it is removed, and until then its connections go on.
		was := p.state
		t.stop(p, p.grace)
		if was == podStopping {
			t.drop(p)
		}
		t.lost(p, was, fmt.Sprintf("its start failed although it listened: %v", e.Err))
	case t.state == Waking && p.starts() && e.Retryable:
		t.drop(p)
		t.forget(p)
		t.lastErr = e.Err
		delay := min(retryDelay<<max(0, min(t.tries-1, 10)), maxRetryDelay)
		t.startAt = t.now.Add(delay)
		t.report(Warning, "start failed, tried again in %s: %v", delay, e.Err)
	default:
		t.drop(p)
		t.lost(p, p.state, fmt.Sprint(e.Err))
	}
}

// forget takes a pod that is lost out of the wake's story.
func (t *turn) forget(p *pod) {
	s := t.story
	if s == nil || s.ref != p.ref || s.result != ResultRunning {
		return
	}
	s.ref = 0
	for _, q := range t.pods {
		if q.starts() {
			s.follow(q)
			return
		}
	}
}

func (t *turn) listening(e Listening) {
	t.back(e.Ref) // its node speaks
	p := t.pod(e.Ref)
	switch {
	case p == nil || p.exited:
	case p.state > podServing:
		if p.sleeping && e.At <= t.sleptAt {
			t.answered(p, e.At) // before it was told to end: its wake was none in vain
		}
	case p.state == podServing:
		if !p.confirmed {
			p.confirmed, p.by, t.pending = true, 0, nil
			t.unhurry()
		}
	default:
		t.serve(p, e.At)
	}
}

// serve makes a pod that listens one that serves.
func (t *turn) serve(p *pod, at monotime.Time) {
	p.state, p.network, p.listened, p.confirmed, p.by = podServing, true, true, true, 0
	t.pending = nil
	switch {
	case p.surge:
		t.switchOver(p)
	case t.state != Waking:
		t.message = ""
		t.report(Info, "%s serve", counted(uint32(t.Serving()), "pod"))
	default:
		t.answered(p, at)
		t.state, t.message, t.failures, t.retryAt, t.wakeBy = Warm, "", 0, 0, 0
		if t.story != nil {
			t.report(Info, "warm: listens %s after the SYN", ms(at.Sub(t.story.at[0])))
		} else {
			t.report(Info, "warm")
		}
		t.unhurry()
	}
}

// unhurry lifts the deadlines that were there because clients waited.
func (t *turn) unhurry() {
	for _, p := range t.pods {
		if p.state == podServing || p.foreign && p.state == podStarting {
			p.by = 0
		}
	}
}

// answered ends the story of a wake well: this pod is the first that listens.
func (t *turn) answered(p *pod, at monotime.Time) {
	if s := t.story; s != nil && s.result == ResultRunning {
		s.follow(p)
	}
	t.mark(p.ref, PhaseListening, at)
	t.conclude(ResultWarm, "")
}

// switchOver makes a pod of the new spec serve, and drains one that it replaces.
func (t *turn) switchOver(p *pod) {
	p.surge = false
	if old := t.victim(func(q *pod) bool { return q.serves() && q.rev != t.rev }); old != nil {
		t.drain(old, t.spec.drainTimeout())
	}
	t.message = ""
	t.report(Info, "the new pod serves; the old one is drained")
}

// promote makes the pods that still start those that everybody waits for: the last one that served is lost.
func (t *turn) promote() {
	t.endStory()
	t.state, t.pending, t.wakeBy = Waking, nil, 0
	for _, p := range t.pods {
		if p.state == podStarting && !p.away {
			if p.surge = false; p.by == 0 || p.by > t.now.Add(t.spec.WakeTimeout) {
				p.by = t.now.Add(t.spec.WakeTimeout)
			}
			t.wakeBy = max(t.wakeBy, p.by)
		}
	}
	t.tries = 1
}

func (t *turn) updateFailed(reason string) {
	t.badRev = t.rev
	t.message = "update failed, the pod of the manifest before it serves on: " + reason
	t.report(Error, "%s", t.message)
}

// fail ends a wake: whoever waits is refused, and the next wakes are slowed down.
func (t *turn) fail(reason string) {
	for _, p := range t.pods {
		if p.state == podStarting || p.serves() {
			t.stop(p, p.grace)
		}
	}
	t.failures++
	delay := backoff(t.failures)
	t.state, t.message, t.retryAt, t.wakeBy, t.want = Failed, reason, t.now.Add(delay), 0, 0
	t.refuse, t.pending = reason, nil
	t.conclude(ResultFailed, reason)
	if delay > 0 {
		t.report(Error, "wake failed: %s; not tried again for %s", reason, delay)
	} else {
		t.report(Error, "wake failed: %s", reason)
	}
}

// backoff is the pause after so many failures in a row: the second try is at once.
func backoff(failures int) time.Duration {
	if failures <= 1 {
		return 0
	}
	return min(time.Second<<min(failures-2, 10), maxBackoff)
}

// pace keeps pods that end again and again, while others serve or nobody waits, from being started all the time.
func (t *turn) pace() {
	if t.lastCrash != 0 && t.now.Sub(t.lastCrash) > 2*maxBackoff {
		t.crashes = 0
	}
	t.crashes, t.lastCrash = t.crashes+1, t.now
	t.startAt = t.now.Add(backoff(t.crashes))
}

// endStory ends the story of a wake that is over.
func (t *turn) endStory() {
	t.tell(nil)
	t.story = nil
}

// conclude notes how the wake under way ended, if there is one.
func (t *turn) conclude(r Result, reason string) {
	if t.story != nil && t.story.result == ResultRunning {
		t.story.result, t.story.reason, t.record = r, reason, true
	}
}

// timer does what is due.
func (t *turn) timer(e Timer) {
	due := func(at monotime.Time) bool { return at != 0 && t.now >= at }
	for _, p := range append([]*pod(nil), t.pods...) {
		if due(p.by) {
			t.overdue(p)
		}
	}
	switch {
	case !due(t.surplusAt):
	case e.Rolling:
		t.surplusAt = t.now.Add(surplusPatience)
	default:
		if n := t.active() - t.want; n > 0 {
			t.report(Info, "%s too many: scaled in again", counted(uint32(n), "pod"))
			t.surplus()
		}
	}
	if !t.waiting() || !due(t.wakeBy) {
		return
	}
	if t.state == Waking {
		t.fail(t.lateness(nil))
		return
	}
	t.pending, t.wakeBy = nil, 0
	t.refuse = fmt.Sprintf("the pod before it does not end: waited %s", t.longestGrace()+t.spec.WakeTimeout)
	t.report(Error, "wake failed: %s", t.refuse)
}

// overdue ends what a pod did not do in time.
func (t *turn) overdue(p *pod) {
	others := func(is func(*pod) bool) bool { return t.count(func(q *pod) bool { return q != p && is(q) }) > 0 }
	switch {
	case p.sleeping && p.state == podDraining && t.sleepAsked:
		t.stopAll() // no gate answers, and the user does not wait for one
	case p.sleeping && p.state == podDraining:
		t.serveAgain("no gate said that the pod is drained")
	case p.state >= podDraining || p.away:
		t.stop(p, p.grace)
	case p.surge:
		t.stop(p, p.grace)
		reason := fmt.Sprintf("nothing listens on port %d after %s", t.spec.Port, t.spec.WakeTimeout)
		if !p.started {
			reason = "its process was not started in time"
		}
		t.updateFailed(reason)
	case t.state == Waking && t.now < t.wakeBy && others((*pod).starts):
		t.stop(p, p.grace)
		t.forget(p)
	case t.state == Waking:
		t.fail(t.lateness(p))
	case p.state == podServing && others((*pod).serves):
		t.stop(p, p.grace)
		t.report(Warning, "a pod is stopped: %s", t.lateness(p))
	case p.state == podServing && t.count(func(q *pod) bool { return q.state == podStarting && !q.away }) > 0:
		reason := t.lateness(p)
		t.stop(p, p.grace)
		t.report(Error, "lost its pod while the replacement starts: %s", reason)
		t.promote()
	case p.state == podServing:
		t.fail(t.lateness(p))
	default:
		reason := t.lateness(p)
		t.stop(p, p.grace)
		t.pace()
		t.message = "a new pod does not serve: " + reason
		t.report(Warning, "%s", t.message)
	}
}
