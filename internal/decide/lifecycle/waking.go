// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

const (
	// maxBackoff bounds the time between two wakes that fail.
	maxBackoff = time.Minute
	// retryDelay is the first pause before a start is tried again within one wake because the runtime did not answer. It
	// doubles up to maxRetryDelay.
	retryDelay    = 100 * time.Millisecond
	maxRetryDelay = 2 * time.Second
)

// backoff is the pause after a number of failures in a row; the second try is immediate.
func backoff(failures int) time.Duration {
	if failures <= 1 {
		return 0
	}
	return min(time.Second<<min(failures-2, 10), maxBackoff)
}

// restartAsked is the reason for new pods of the same spec.
const restartAsked = "a restart was asked for"

// wake begins a wake for clients. settle starts its pods, at once or when their predecessor is gone.
func (t *transition) wake(e WakeAsked) {
	t.enterWaking(max(t.spec.burst(e.Parked), t.next.replicas))
	t.wakes++
	t.flush(&timeline{number: t.wakes, result: ResultRunning, parked: e.Parked})
	if e.SYNSeen == 0 {
		e.SYNSeen = t.now
	}
	t.timeline.mark(PhaseSYNSeen, e.SYNSeen)
	t.timeline.mark(PhaseTold, e.Noticed)
	t.timeline.mark(PhaseHandled, t.now)
	t.record = true
	t.note("wakes: %s parked", counted(e.Parked, "connection request"))
}

// scaleFromZero starts pods that no client has asked for. There is no waterfall, because that begins with a SYN.
func (t *transition) scaleFromZero(n int, why string) {
	t.enterWaking(n)
	t.endTimeline()
	t.note("starts %s: %s", counted(uint32(t.desired), "pod"), why)
}

func (t *transition) enterWaking(n int) {
	t.state, t.message, t.desired, t.next.replicas = Waking, "", t.spec.clamp(n), 0
	t.ports.waits = [len(t.ports.waits)]portWait{}
	// settle sets the deadline again when a pod starts.
	t.start = start{deadline: t.now.Add(t.spec.Grace + t.spec.WakeTimeout)}
}

// waitForFound begins to wait for a pod that the machine did not start.
func (t *transition) waitForFound(p *pod, why string) {
	t.scaleFromZero(1, why)
	t.start.deadline, t.start.tries = t.now.Add(t.spec.WakeTimeout), 1
	p.deadline = t.start.deadline
}

// waitForStarting turns from Warm to Waking for the pods that are starting already: the last serving one is lost.
func (t *transition) waitForStarting() {
	t.endTimeline()
	t.state, t.next.wake, t.start.deadline = Waking, nil, 0
	for _, p := range t.pods {
		if p.startsReachable() {
			p.life = lifeStarting
			if latest := t.now.Add(t.spec.WakeTimeout); p.deadline == 0 || p.deadline > latest {
				p.deadline = latest
			}
			t.start.deadline = max(t.start.deadline, p.deadline)
		}
	}
	t.start.tries = 1
}

// lostReachable handles the case that the last serving pod still exists but cannot be used.
func (t *transition) lostReachable(why string) {
	switch {
	case t.state != Warm || t.count((*pod).serves) > 0:
	case t.count((*pod).startsReachable) > 0:
		t.note("waits for the pod that is starting: %s", why)
		t.waitForStarting()
	default:
		t.next.wake = nil
		t.scaleFromZero(max(t.desired, 1), why)
	}
}

// fail ends a wake: clients that wait are refused, and the next wakes are slowed down.
func (t *transition) fail(reason string) {
	for _, p := range t.pods {
		if p.starting() || p.serves() {
			t.stop(p, p.grace)
		}
	}
	t.backoff.wakes++
	delay := backoff(t.backoff.wakes)
	t.backoff.wakeRetry = t.now.Add(delay)
	t.state, t.message, t.desired, t.start.deadline = Failed, reason, 0, 0
	t.refuse, t.next.wake = reason, nil
	t.conclude(ResultFailed, reason)
	if delay > 0 {
		t.report(v1alpha1.EventWakeFailed, Error, "wake failed: %s; not tried again for %s", reason, delay)
	} else {
		t.report(v1alpha1.EventWakeFailed, Error, "wake failed: %s", reason)
	}
}

// slowDown delays the next start after a pod was lost while others serve or no client waits.
func (t *transition) slowDown() {
	b := &t.backoff
	if b.lastCrash != 0 && t.now.Sub(b.lastCrash) > 2*maxBackoff {
		b.crashes = 0
	}
	b.crashes, b.lastCrash = b.crashes+1, t.now
	t.start.after = t.now.Add(backoff(b.crashes))
}

// podFailed handles the loss of a pod that was started while others serve.
func (t *transition) podFailed(reason string) {
	t.slowDown()
	t.message = "a new pod does not serve: " + reason
	t.report(v1alpha1.EventProblem, Warning, "%s", t.message)
}

// updateFailed gives up an update: the pods of the old spec go on serving.
func (t *transition) updateFailed(reason string) {
	t.badRev = t.rev
	t.message = "update failed, the pod of the previous manifest continues to serve: " + reason
	if t.revWhy == restartAsked {
		t.message = "restart failed, the previous pod continues to serve: " + reason
	}
	t.report(v1alpha1.EventProblem, Error, "%s", t.message)
}

// clearDeadlines lifts the deadlines that existed because clients waited.
func (t *transition) clearDeadlines() {
	for _, p := range t.pods {
		if p.life == lifeServing || p.origin == originOutside && p.starting() {
			p.deadline = 0
		}
	}
}

// answered ends the timeline of a successful wake: this pod is the first that listens.
func (t *transition) answered(p *pod, at monotime.Time) {
	if l := t.timeline; l != nil && l.result == ResultRunning {
		l.follow(p)
	}
	t.mark(p.ref, PhaseListening, at)
	t.conclude(ResultWarm, "")
}
