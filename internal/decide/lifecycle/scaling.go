// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

// surplusPatience is how long excess pods are tolerated where pods are also started from outside: the machine may
// hear of a replacement before it hears that the pod it replaces is being removed.
const surplusPatience = 3 * time.Second

// resize changes the number of pods of a service that has some.
func (t *transition) resize(n int, why string) {
	t.report(v1alpha1.EventScaled, Info, "scaled from %d to %d: %s", t.desired, n, why)
	t.desired = n
	t.reuseDrained()
	t.removeSurplus()
}

// removeSurplus removes excess pods: starting ones first, then those with the fewest open flows.
func (t *transition) removeSurplus() {
	for t.active() > t.desired {
		t.retire(t.victim(func(p *pod) bool { return p.serves() || p.starts() }))
	}
}

// watchSurplus ensures that excess pods started from outside do not stay. While the runtime replaces pods, it
// manages excess pods itself.
func (t *transition) watchSurplus() {
	switch {
	case t.state != Waking && t.state != Warm || t.active() <= t.desired:
		t.surplusAt = 0
	case !t.spec.Rolls:
		t.removeSurplus()
	case t.surplusAt == 0:
		t.surplusAt = t.now.Add(surplusPatience)
	}
}

// surplusDue removes excess pods whose time has come, or waits longer while the runtime replaces pods.
func (t *transition) surplusDue(rolling bool) {
	if rolling {
		t.surplusAt = t.now.Add(surplusPatience)
		return
	}
	if n := t.active() - t.desired; n > 0 {
		t.report(v1alpha1.EventScaled, Info, "%s too many: scaled in again", counted(uint32(n), "pod"))
		t.removeSurplus()
	}
}

// retire gives a pod no new flows, and stops it when its flows have ended or the drain timeout has come. What is still
// open then are connections that neither side closes: kept-alive ones, idle or busy. SIGTERM asks the pod's server to
// close them, and the grace period gives it time to do so between two requests. No request is lost if the server
// answers pending requests on each connection before it closes it; a client whose request crosses the close of an idle
// connection retries on another one, as HTTP clients do (RFC 9112, section 9.3.1). The gate itself resets nothing: it
// cannot know whether a silent connection waits for an answer.
func (t *transition) retire(p *pod) {
	if p.progress >= podListened {
		t.drain(p, t.spec.drainTimeout())
		return
	}
	t.stop(p, p.grace)
	t.forget(p)
}

// drained stops a pod that is no longer needed once its flows have ended.
func (t *transition) drained(p *pod) {
	if p.life == lifeDrained && !p.is(podSleeping) && !p.is(podLeaving) && (p.openFlows == 0 || p.is(podHurried)) {
		t.stop(p, p.grace)
	}
}

// reuseDrained makes pods that are being drained serve again, instead of starting others.
func (t *transition) reuseDrained() {
	for i := len(t.pods) - 1; t.state == Warm && i >= 0 && t.missing() > 0; i-- {
		p := t.pods[i]
		stays := !p.is(podSleeping | podLeaving | podAway)
		if stays && p.drains() && p.progress == podConfirmed && p.rev == t.rev {
			p.life, p.deadline = lifeServing, 0
		}
	}
}

// switchOver makes a pod of the new spec serve, and drains one of an old spec in return.
func (t *transition) switchOver() {
	if old := t.victim(func(q *pod) bool { return q.serves() && q.rev != t.rev }); old != nil {
		t.drain(old, t.spec.drainTimeout())
	}
	t.message = ""
	t.note("the new pod serves; the old one is drained")
}
