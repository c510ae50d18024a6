// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

const (
	// quietTimeout is how long gates may take to answer that a drained pod gets no new flows.
	quietTimeout = 5 * time.Second
	// leaveTimeout is how long, beyond its grace, a pod that is being removed from outside may take to end.
	leaveTimeout = time.Minute
)

// idle drains the pods of a service that was not used for its idle timeout. The gates' answers decide whether they are
// stopped.
func (t *transition) idle(e IdleSeen) {
	switch {
	case t.state == Cold || t.state == Failed:
		t.publish = true // the daemon refers to a pod that is gone
	case t.state != Warm:
	case t.freezes() && t.allFrozen(): // the timer decides
	case t.freezes() && (t.now.Sub(e.LastPacket) < t.spec.IdleTimeout || t.spec.Min > 0 && t.desired <= t.spec.Min):
		t.freezePods(e)
	case t.spec.Min == 0:
		t.drainAll(e)
	case t.desired > t.spec.Min:
		t.resize(t.spec.Min, "it is not used")
	}
}

// goToSleep puts the service to sleep whatever its clients do.
func (t *transition) goToSleep(why string) {
	switch {
	case t.deleted:
	case t.state == Warm:
		t.sleep = sleep{true, t.now, why}
		t.drainAll(IdleSeen{})
	case t.state == Stopping:
		t.sleep.forced, t.next.replicas = true, 0
	case t.state == Waking:
		t.refuse, t.start.deadline = why, 0
		t.note("wake given up: %s", why)
		t.state, t.sleep = Stopping, sleep{true, t.now, why}
		for _, p := range t.pods {
			if p.life <= lifeServing {
				p.change(podSleeping, p.starts())
				t.stop(p, p.grace)
			}
		}
		t.stopOtherDrains()
		t.asleepOnceGone()
	}
}

// drainAll drains the pods that serve. Starting pods are no longer needed: the next wake starts from the current spec.
func (t *transition) drainAll(e IdleSeen) {
	t.state, t.start.deadline = Stopping, 0
	for _, p := range t.pods {
		switch {
		case p.serves():
			var known bool
			if p.lastIdle, known = e.Of[p.ref]; !known {
				p.lastIdle = e.LastPacket
			}
			p.set(podSleeping)
			t.drain(p, quietTimeout)
		case p.life <= lifeServing:
			t.stop(p, p.grace)
		}
	}
	if t.next.wake != nil {
		t.start.deadline = t.now.Add(t.longestGrace() + t.spec.WakeTimeout)
	}
}

// pressed stops a service whose pods are frozen before its time, unless it always has pods: then it would start
// others.
func (t *transition) pressed(why string) {
	if !t.freezes() || t.spec.Min > 0 || !t.allFrozen() {
		return
	}
	t.report(v1alpha1.EventProblem, Warning, "stopped while it was frozen: %s", why)
	t.freeze.stopAt = 0
	t.drainAll(t.freeze.idle)
}

// quiet decides what becomes of a pod once no gate gives it new flows.
func (t *transition) quiet(e Quiet) {
	p := t.pod(e.Ref)
	if p == nil || !p.drains() || e.Generation < p.drainGen {
		return
	}
	p.life, p.openFlows = lifeDrained, e.OpenFlows
	switch {
	case !p.is(podSleeping):
		t.drained(p)
	case !t.sleep.forced && UsedSince(p.lastIdle, e.LastPacket, t.spec.silence()):
		t.stayAwake("a packet came")
	case t.count(func(q *pod) bool { return q.is(podSleeping) && q.life == lifeDraining }) == 0:
		t.stopAll()
	}
}

// stopAll stops the pods of a service that goes to sleep.
func (t *transition) stopAll() {
	for _, p := range t.pods {
		if p.is(podSleeping) {
			t.stop(p, p.grace)
		}
	}
	t.stopOtherDrains()
	if !t.spec.Single && (t.next.wake != nil || t.next.replicas > 0) {
		t.fallAsleep() // waiting clients do not have to wait until the pods are gone
	}
}

// stopOtherDrains stops pods that are drained for another reason, if a user wants the service to sleep now.
func (t *transition) stopOtherDrains() {
	for _, p := range t.pods {
		if t.sleep.forced && p.drains() {
			t.stop(p, p.grace)
		}
	}
}

// stayAwake cancels going to sleep.
func (t *transition) stayAwake(why string) {
	t.state, t.start.deadline = Warm, 0
	for _, p := range t.pods {
		if !p.is(podSleeping) {
			continue
		}
		p.unset(podSleeping)
		switch {
		case p.drains() && p.is(podLeaving):
			p.deadline = t.now.Add(p.grace + leaveTimeout)
		case p.drains():
			p.life, p.deadline = lifeServing, 0
			if t.next.wake != nil && p.progress < podConfirmed {
				p.deadline = t.now.Add(t.spec.WakeTimeout)
			}
		}
	}
	if f := &t.freeze; f.on { // a keepalive, which needs no program, may have been the packet
		f.idle, f.stopAt = IdleSeen{LastPacket: t.now}, t.stopTime(t.now)
	}
	t.note("stays awake: %s", why)
	t.lostReachable("its pods cannot be reached")
}

// asleepOnceGone ends Stopping once all processes that it stopped have ended.
func (t *transition) asleepOnceGone() {
	sleeping := t.count(func(p *pod) bool { return p.is(podSleeping) && p.life != lifeExited })
	if t.state == Stopping && !t.deleted && sleeping == 0 {
		t.fallAsleep()
	}
}

// fallAsleep ends Stopping, and begins what waits for that.
func (t *transition) fallAsleep() {
	t.conclude(ResultCancelled, t.sleep.why)
	for _, p := range t.pods {
		p.unset(podSleeping)
	}
	wake, replicas := t.next.wake, t.next.replicas
	t.state, t.message, t.desired, t.sleep.forced, t.next.wake = Cold, "", 0, false, nil
	t.start.deadline, t.start.after = 0, 0
	t.freeze = freezing{seq: t.freeze.seq}
	t.note("sleeps")
	switch {
	case wake != nil:
		t.wake(*wake)
	case replicas > 0:
		t.scaleFromZero(replicas, t.next.why)
	}
}
