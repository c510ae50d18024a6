// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
)

// startFailed handles StartFailed.
func (t *transition) startFailed(e StartFailed) {
	p := t.pod(e.Ref)
	switch {
	case p == nil:
	case p.progress >= podListened || p.stopped():
		// It ran all the same: what is left of it is removed, and until then its connections continue.
		was := p.life
		t.stop(p, p.grace)
		if was >= lifeStopping {
			t.removePod(p)
		}
		t.lost(p, was, fmt.Sprintf("its start failed although it listened: %v", e.Err))
	case t.state == Waking && p.starts() && e.Retryable:
		t.removePod(p)
		t.forget(p)
		t.start.lastErr = e.Err
		delay := min(retryDelay<<max(0, min(t.start.tries-1, 10)), maxRetryDelay)
		t.start.after = t.now.Add(delay)
		t.report(v1alpha1.EventProblem, Warning, "start failed, tried again in %s: %v", delay, e.Err)
	default:
		t.removePod(p)
		t.lost(p, p.life, fmt.Sprint(e.Err))
	}
}

// exited handles the end of a pod's process. verb says what happened to the pod: it crashed, or ended.
func (t *transition) exited(r Ref, reason, verb string) {
	p := t.pod(r)
	if p == nil || p.life == lifeExited {
		return
	}
	was := p.life
	t.stop(p, 0)
	p.life = lifeExited
	t.lastEnd = end{r, verb, reason}
	t.lost(p, was, reason)
}

// ended handles the end of a pod whose reason is known. If the end was reported before, the reason replaces the
// one of that report.
func (t *transition) ended(e Ended) {
	verb := "ended"
	if e.Crashed {
		verb = "crashed"
	}
	last := t.lastEnd
	if last.ref != e.Ref {
		t.exited(e.Ref, e.Why, verb)
		return
	}
	if last.reason == e.Why {
		return
	}
	t.lastEnd = end{e.Ref, verb, e.Why}
	if before, found := strings.CutSuffix(t.message, last.reason); found {
		if stem, crashed := strings.CutSuffix(before, last.verb+": "); crashed {
			before = stem + verb + ": "
		}
		t.message = before + e.Why
	}
	t.report(v1alpha1.EventProblem, Warning, "why a pod %s: %s", last.verb, e.Why)
}

// removed handles a pod of which nothing remains.
func (t *transition) removed(r Ref) {
	p := t.pod(r)
	if p == nil {
		return
	}
	t.removePod(p)
	t.lost(p, p.life, "the pod is gone")
}

// lost handles a pod whose process has ended or whose start has failed. was is its state before.
func (t *transition) lost(p *pod, was podLife, reason string) {
	switch {
	case t.deleted:
	case p.is(podSleeping):
		if was < lifeStopping && !p.is(podLeaving) {
			t.report(v1alpha1.EventProblem, Warning, "ended while it was drained: %s", reason)
		}
		t.asleepOnceGone()
	case was >= lifeDraining || p.is(podAway):
	case was == lifeReplacing:
		t.updateFailed(reason)
	case was == lifeServing:
		verb := "crashed"
		if t.lastEnd.ref == p.ref {
			verb = t.lastEnd.verb
		}
		t.lostServing(verb, reason)
	case t.state == Waking && t.count((*pod).starts) == 0:
		t.fail(reason)
	case t.state == Waking:
		t.desired = max(1, t.desired-1)
		t.forget(p)
		t.report(v1alpha1.EventProblem, Warning, "lost one of the starting pods: %s", reason)
	default:
		t.podFailed(reason)
	}
}

// lostServing handles the loss of a serving pod. verb says what happened to it.
func (t *transition) lostServing(verb, reason string) {
	switch {
	case t.count((*pod).serves) > 0:
		t.slowDown()
		t.message = "a pod " + verb + ": " + reason
		t.report(v1alpha1.EventProblem, Error, "%s; the others continue to serve", t.message)
	case t.count((*pod).startsReachable) > 0:
		t.lostToStarting(reason)
	default:
		wake := t.next.wake
		t.state, t.next.wake, t.desired = Cold, nil, 0
		t.slowDown() // if at least one pod is wanted, it is started again, but not in a tight loop
		t.message = verb + ": " + reason
		t.report(v1alpha1.EventProblem, Error, "%s; the next connection request wakes it again", t.message)
		if wake != nil {
			t.wake(*wake)
		}
	}
}

// lostToStarting handles the loss of the last serving pod while another one starts.
func (t *transition) lostToStarting(reason string) {
	t.report(v1alpha1.EventProblem, Error, "lost its pod while the replacement starts: %s", reason)
	t.waitForStarting()
}

// overdue gives up a pod that has missed its deadline.
func (t *transition) overdue(p *pod) {
	others := func(is func(*pod) bool) bool { return t.count(func(q *pod) bool { return q != p && is(q) }) > 0 }
	reason := t.timeoutReason(p)
	switch {
	case p.drainsForSleep() && t.sleep.forced:
		t.stopAll() // no gate answers, and the user need not wait for one
	case p.drainsForSleep():
		t.stayAwake("no gate confirmed that the pod is drained")
	case p.life >= lifeDraining || p.is(podAway):
		t.stop(p, p.grace)
	case p.life == lifeReplacing:
		t.updateFailed(t.updateTimeoutReason(p))
		t.stop(p, p.grace)
	case p.life == lifeStarting && p.open != 0:
		t.serve(p, t.now) // the clients of other ports are refused
	case t.state == Waking && t.now < t.start.deadline && others((*pod).starts):
		t.stop(p, p.grace)
		t.forget(p)
	case t.state == Waking:
		t.fail(reason)
	case p.life == lifeServing && (p.is(podProbed) || p.is(podDeaf)):
		t.refuseUnready(p, reason)
	case p.life == lifeServing && others((*pod).serves):
		t.stop(p, p.grace)
		t.report(v1alpha1.EventProblem, Warning, "a pod is stopped: %s", reason)
	case p.life == lifeServing && t.count((*pod).startsReachable) > 0:
		t.stop(p, p.grace)
		t.lostToStarting(reason)
	case p.life == lifeServing:
		t.fail(reason)
	default:
		t.stop(p, p.grace)
		t.podFailed(reason)
	}
}

// refuseUnready refuses clients that have waited long enough for a pod that served but has stopped listening or
// fails its readinessProbe. The pod keeps its open connections, and serves again once it has recovered.
func (t *transition) refuseUnready(p *pod, reason string) {
	p.deadline, t.next.wake, t.refuse = 0, nil, reason
	t.report(v1alpha1.EventProblem, Error, "clients are refused: %s", reason)
}
