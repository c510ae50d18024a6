// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

// updateImageTimeout bounds the time for the image of a new spec while the old pod serves: no client waits for it.
const updateImageTimeout = 15 * time.Minute

// Step handles one event and returns the resulting actions.
func (m *Machine) Step(ev Event, now monotime.Time) []Action {
	t := transition{Machine: m, now: now}
	t.handle(ev)
	t.settle()
	return t.actions()
}

func (t *transition) handle(ev Event) {
	switch e := ev.(type) {
	case WakeAsked:
		t.wakeAsked(e)
	case PhaseEnded:
		t.mark(e.Ref, e.Phase, e.At)
		if p := t.pod(e.Ref); p != nil && p.life == lifeReplacing && e.Phase == PhaseImage {
			p.deadline = t.now.Add(t.spec.WakeTimeout)
		}
	case NetworkReady:
		if p := t.pod(e.Ref); p != nil {
			p.reach(podNetwork)
		}
	case Waits:
		if p := t.pod(e.Ref); p != nil {
			p.waits = e.For
		}
	case Sockets:
		t.sockets(e)
	case Started:
		if p := t.pod(e.Ref); p != nil {
			p.reach(podRunning)
		}
	case StartFailed:
		t.startFailed(e)
	case Listening:
		t.listening(e)
	case Unready:
		t.unready(e)
	case Deaf:
		t.deaf(e)
	case Trace:
		t.trace(e)
	case Exited:
		t.exited(e.Ref, t.exitReason(e), "crashed")
	case Ended:
		t.ended(e)
	case IdleSeen:
		t.idle(e)
	case Quiet:
		t.quiet(e)
	case FlowsSeen:
		if p := t.pod(e.Ref); p != nil {
			p.openFlows = e.Open
			t.useSeen(p, e.LastPacket)
			t.drained(p)
		}
	case StopDone:
		t.removed(e.Ref)
	case SleepAsked:
		t.goToSleep("put to sleep by a user")
	case Scale:
		t.scale(e)
	case SpecChanged:
		t.specChanged(e)
	case RestartAsked:
		if !t.deleted {
			t.restart(restartAsked)
		}
	case Deleted:
		t.delete(e.Drain)
	case Adopted:
		t.adopt(e)
	case Appeared:
		t.appeared(e.Ref)
	case Leaving:
		t.leaving(e)
	case Away:
		t.away(e.Ref)
	case Back:
		t.back(e.Ref)
	case Rejoined:
		t.rejoined()
	case FrozenSeen:
		t.frozenSeen(e)
	case ThawAsked:
		t.thaw()
	case Pressed:
		t.pressed(e.Why)
	case Timer:
		t.timer(e)
	}
}

// trace notes times that the gate has measured.
func (t *transition) trace(e Trace) {
	t.mark(e.Ref, PhaseReleased, e.Released)
	t.mark(e.Ref, PhaseFirstSYNACK, e.FirstSYNACK)
	t.mark(e.Ref, PhaseFirstByte, e.FirstByte)
	if l := t.timeline; l != nil && l.ref == e.Ref && e.ReleasedN > l.released {
		l.released, t.record = e.ReleasedN, true
	}
}

// rejoined publishes the pods again, and waits anew for the answers of gates.
func (t *transition) rejoined() {
	t.publish = true
	for _, p := range t.pods {
		if p.drainsForSleep() {
			p.deadline = t.now.Add(quietTimeout)
		}
	}
}

// timer does what is due.
func (t *transition) timer(e Timer) {
	due := func(at monotime.Time) bool { return at != 0 && t.now >= at }
	for _, p := range slices.Clone(t.pods) {
		if due(p.deadline) {
			t.overdue(p)
		}
	}
	if t.state == Warm {
		t.portsDue()
	}
	if due(t.surplusAt) {
		t.surplusDue(e.Rolling)
	}
	if t.state == Warm && t.allFrozen() && due(t.freeze.stopAt) {
		t.freeze.stopAt = 0
		t.drainAll(t.freeze.idle)
	}
	if !t.clientsWait() || !due(t.start.deadline) {
		return
	}
	if t.state == Waking {
		t.fail(t.timeoutReason(nil))
		return
	}
	t.next.wake, t.start.deadline = nil, 0
	t.refuse = t.predecessorStays(t.longestGrace() + t.spec.WakeTimeout)
	t.report(v1alpha1.EventWakeFailed, Error, "wake failed: %s", t.refuse)
}

// settle starts what has become possible: missing pods, or the replacement of a pod with an outdated spec.
func (t *transition) settle() {
	if t.deleted {
		return
	}
	t.watchSurplus()
	earliest := max(t.start.after, t.backoff.wakeRetry)
	if t.spec.Min > 0 && (t.state == Cold || t.state == Failed) && t.now >= earliest {
		why := fmt.Sprintf("at least %s wanted", counted(uint32(t.spec.Min), "pod"))
		t.scaleFromZero(t.spec.Min, cmp.Or(t.spec.MinWhy, why))
	}
	due := t.now >= t.start.after && !t.blocked()
	switch {
	case t.state == Waking && due && t.missing() > 0 && (t.start.tries == 0 || t.now < t.start.deadline):
		if t.start.tries == 0 {
			t.start.deadline = t.now.Add(t.spec.WakeTimeout)
		}
		t.start.tries++
		for t.missing() > 0 && len(t.pods) < maxPods {
			p := t.startPod(t.start.deadline)
			p.origin = originCrowd
			if t.timeline != nil && t.timeline.ref == 0 {
				t.timeline.ref = p.ref
			}
		}
	case t.state == Warm && due && t.missing() > 0:
		for t.missing() > 0 && len(t.pods) < maxPods {
			t.startPod(t.now.Add(t.spec.WakeTimeout))
		}
	case t.state == Warm && t.outdated():
		t.startPod(t.now.Add(updateImageTimeout + t.spec.WakeTimeout)).life = lifeReplacing
		t.note("%s: a new pod starts, the old one serves until it listens", t.revWhy)
	}
}
