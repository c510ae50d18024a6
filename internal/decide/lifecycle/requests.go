// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"slices"
)

// deletedReason is the answer to the clients of a deleted service.
const deletedReason = "the service was removed"

// wakeAsked answers a daemon that has parked SYNs.
func (t *transition) wakeAsked(e WakeAsked) {
	t.ports.asked |= Only(e.Port)
	switch {
	case t.deleted:
		t.refuse = deletedReason
	case t.state == Cold:
		t.wake(e)
	case t.state == Failed && t.now < t.backoff.wakeRetry:
		t.refuse = fmt.Sprintf("%s; next try in %s", t.message, roundUp(t.backoff.wakeRetry.Sub(t.now)))
	case t.state == Failed:
		t.wake(e)
	case t.state == Waking:
		t.serveOpen()
		t.desired = max(t.desired, t.spec.burst(e.Parked))
		if l := t.timeline; l != nil && e.Parked > l.parked {
			l.parked, t.record = e.Parked, true
		}
	case t.state == Warm:
		t.publish = true
		t.awaitListening(e)
	case t.mayStayAwake() && !t.sleep.forced:
		serving := func(p *pod) bool { return p.is(podSleeping) && p.progress == podConfirmed && p.life != lifeExited }
		if t.next.wake == nil && t.count(serving) == 0 {
			t.next.wake = &e
		}
		t.stayAwake("a new client came")
	case !t.spec.Single && !t.mayStayAwake():
		t.next.wake = &e
		t.fallAsleep()
	case t.next.wake == nil:
		t.next.wake = &e
		t.start.deadline = t.now.Add(t.longestGrace() + t.spec.WakeTimeout)
	case e.Parked > t.next.wake.Parked:
		t.next.wake.Parked = e.Parked
	}
}

// awaitListening gives pods a deadline to listen, if a client waits and no other pod listens: adopted pods, and those
// that listen for other ports.
func (t *transition) awaitListening(e WakeAsked) {
	if t.Serving() > 0 {
		t.ports.asked = 0
		if len(t.spec.More) > 0 {
			t.awaitPort(e.Port)
		}
		return
	}
	if t.next.wake == nil {
		t.next.wake = &e
	}
	for _, p := range t.pods {
		if p.serves() && p.deadline == 0 {
			p.deadline = t.now.Add(t.spec.WakeTimeout)
		}
	}
}

// scale makes the service have N pods.
func (t *transition) scale(e Scale) {
	if t.deleted {
		return
	}
	if e.N <= 0 && t.spec.Min == 0 {
		t.goToSleep(scaledTo(0, e.Why))
		return
	}
	n := t.spec.clamp(e.N)
	if n > t.desired {
		t.thaw()
	}
	switch t.state {
	case Cold, Failed:
		t.scaleFromZero(n, scaledTo(n, e.Why))
	case Waking, Warm:
		if n != t.desired {
			t.resize(n, e.Why)
		}
	case Stopping:
		if t.mayStayAwake() && !t.sleep.forced {
			t.desired = n
			t.stayAwake(scaledTo(n, e.Why))
			t.removeSurplus()
			return
		}
		t.next.replicas, t.next.why = n, scaledTo(n, e.Why)
		if !t.spec.Single && !t.mayStayAwake() {
			t.fallAsleep()
		}
	}
}

// specChanged applies a changed manifest.
func (t *transition) specChanged(e SpecChanged) {
	if !slices.Equal(e.Spec.More, t.spec.More) {
		t.ports = ports{} // the numbers of ports have another meaning
		for _, p := range t.pods {
			p.open = 0 // daemons report them again
		}
	}
	t.spec = e.Spec
	if t.deleted {
		return
	}
	if e.Restart {
		t.restart("the manifest changed")
	}
	t.refreeze()
	if t.state == Waking || t.state == Warm {
		if n := t.spec.clamp(t.desired); n != t.desired {
			t.resize(n, "the manifest changed its limits")
		}
	}
}

// restart turns to new pods, of a new spec or of the same one. why is for users.
func (t *transition) restart(why string) {
	t.rev++
	t.revWhy = why
	switch t.state {
	case Failed:
		t.state, t.message, t.backoff.wakes, t.backoff.wakeRetry = Cold, "", 0, 0
	case Waking:
		t.start.deadline = t.now.Add(t.spec.Grace + t.spec.WakeTimeout)
		if t.spec.Rolls { // the runtime starts the new pods
			for _, p := range t.pods {
				if p.starting() {
					p.deadline = t.start.deadline
				}
			}
			return
		}
		t.note("%s: the wake begins again", why)
		t.stopStarting()
		t.start = start{deadline: t.start.deadline}
		if t.timeline != nil {
			t.timeline.restart()
		}
	case Warm:
		switch {
		case t.spec.Single:
			t.replaceFirst()
		case !t.spec.Rolls:
			t.stopStarting()
		}
	}
}

// replaceFirst ends the pod of an old spec before one of the new spec is started. Its open flows get the pod's grace
// period only: new clients wait meanwhile.
func (t *transition) replaceFirst() {
	t.stopStarting()
	for _, p := range t.pods {
		if p.serves() {
			p.set(podHurried)
			t.drain(p, quietTimeout)
		}
	}
	t.next.wake = nil
	t.enterWaking(1)
	t.start.deadline = t.start.deadline.Add(quietTimeout)
	t.endTimeline()
	t.note("%s: the pod ends before the new one starts", t.revWhy)
}

// delete stops all pods of a deleted service. With drain, a pod that serves is stopped once it gets no new requests and
// has answered the others.
func (t *transition) delete(drain bool) {
	first := !t.deleted
	t.deleted = true
	if first && t.state != Cold && t.state != Failed {
		t.refuse = deletedReason
		t.conclude(ResultCancelled, t.refuse)
	}
	for _, p := range t.pods {
		if drain && p.serves() && p.progress == podConfirmed {
			t.drain(p, max(t.spec.drainTimeout(), quietTimeout))
		} else {
			t.stop(p, p.grace)
		}
	}
	t.next.wake, t.start.deadline, t.next.replicas, t.state, t.message = nil, 0, 0, Stopping, ""
	if first {
		t.note("removed")
	}
}
