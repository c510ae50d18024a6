// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

// foundPod adds a pod that the machine did not start; nil if its number is used already, or there are too many pods.
func (t *transition) foundPod(r Ref) *pod {
	if r <= t.lastRef || len(t.pods) >= maxPods {
		return nil
	}
	t.lastRef = r - 1
	p := t.newPod()
	p.origin = originOutside
	p.reach(podNetwork)
	return p
}

// adopt counts a pod that was found running as serving. Its daemon reports whether it listens: until then it is
// published as starting, and has no deadline, because its open connections continue even without a daemon.
func (t *transition) adopt(e Adopted) {
	if t.deleted || !e.Leaving && (t.state == Waking || t.state == Stopping) {
		t.appeared(e.Ref)
		return
	}
	p := t.foundPod(e.Ref)
	if p == nil {
		return
	}
	p.reach(podListened)
	if e.Leaving { // its connections may end, but it gets no new ones
		p.set(podLeaving)
		t.drain(p, p.grace+leaveTimeout)
		return
	}
	p.life = lifeServing
	if t.state != Warm {
		t.state, t.message, t.desired, t.start.after = Warm, "", 0, 0
		t.note("warm: its pod was found running")
	} else {
		t.note("one more of its pods was found running")
	}
	if t.desired = max(t.desired, t.active()); t.spec.Single {
		t.desired = 1
	}
	if t.next.wake != nil {
		p.deadline = t.now.Add(t.spec.WakeTimeout)
	}
}

// appeared handles a pod that was started from outside.
func (t *transition) appeared(r Ref) {
	p := t.foundPod(r)
	switch {
	case p == nil:
	case t.deleted:
		t.stop(p, p.grace)
	case t.state == Stopping:
		p.set(podSleeping)
		t.stop(p, p.grace)
	case t.state == Cold || t.state == Failed:
		t.waitForFound(p, "a pod was started from outside")
	case t.state == Waking:
		p.deadline = t.start.deadline
		if t.timeline != nil && t.timeline.ref == 0 {
			t.timeline.ref = p.ref
		}
	}
}

// leaving drains a pod that is being removed from outside.
func (t *transition) leaving(e Leaving) {
	p := t.pod(e.Ref)
	if p == nil || p.is(podLeaving) || p.stopped() {
		return
	}
	unused := t.freezes() && t.spec.Min == 0 && t.allFrozen() && p.serves() && t.count((*pod).serves) == 1
	p.set(podLeaving)
	if unused { // a replacement would only be frozen again
		t.note("%s: it is frozen, and the service sleeps", cmp.Or(e.Why, "its pod is being removed from outside"))
		t.freeze.stopAt = 0
		t.drainAll(t.freeze.idle)
		return
	}
	was := p.life
	switch {
	case p.is(podSleeping): // it is drained already
		return
	case p.drains():
		p.deadline = t.now.Add(p.grace + leaveTimeout)
		return
	}
	t.drain(p, p.grace+leaveTimeout)
	switch {
	case was == lifeReplacing:
		t.updateFailed(cmp.Or(e.Why, "the new pod was removed from outside"))
	case p.is(podAway):
	case was == lifeServing:
		t.note("%s: it is drained", cmp.Or(e.Why, "a pod is being removed from outside"))
		t.lostReachable("its last pod is being removed")
	default:
		t.forget(p)
	}
}

// away stops counting a pod whose home node is silent. Its connections continue, if it lives.
func (t *transition) away(r Ref) {
	p := t.pod(r)
	if p == nil || p.is(podAway) || p.life == lifeReplacing {
		return
	}
	p.set(podAway)
	switch p.life {
	case lifeStarting:
		t.forget(p)
	case lifeServing:
		p.deadline = 0
		t.report(v1alpha1.EventProblem, Warning, "the node of a pod is silent: the pod gets no new connections")
		t.lostReachable("the node of its last pod is silent")
	}
}

// back counts a pod again once its home node is back and reports that it listens.
func (t *transition) back(r Ref) {
	p := t.pod(r)
	if p == nil || !p.is(podAway) {
		return
	}
	p.unset(podAway)
	if p.life > lifeServing {
		return
	}
	p.life = lifeStarting
	p.unconfirm()
	switch t.state {
	case Cold, Failed:
		t.waitForFound(p, "the node of a pod is back")
	case Stopping:
		if !t.deleted {
			p.set(podSleeping)
		}
		t.stop(p, p.grace)
	default:
		p.deadline = t.listenDeadline()
		t.removeSurplus()
	}
}

// listenDeadline is when a pod that starts now must listen, if clients wait.
func (t *transition) listenDeadline() monotime.Time {
	if t.state == Waking {
		return t.start.deadline
	}
	return t.now.Add(t.spec.WakeTimeout)
}
