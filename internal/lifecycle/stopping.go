// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"slices"

	"wangell.loutres.me/internal/monotime"
)

// idleSeen drains the pods. What the gates then say decides whether they are stopped.
func (t *turn) idleSeen(e IdleSeen) {
	switch {
	case t.state == Cold || t.state == Failed:
		t.publish = true // the daemon believes in a pod that is gone
	case t.state != Warm:
	case t.spec.Min == 0:
		t.putDown(e)
	case t.want > t.spec.Min:
		t.resize(t.spec.Min, "nobody uses it")
	}
}

// sleep puts the service to sleep whatever its clients do.
func (t *turn) sleep(why string) {
	switch {
	case t.deleted:
	case t.state == Warm:
		t.sleepAsked, t.sleptAt, t.sleepWhy = true, t.now, why
		t.putDown(IdleSeen{})
	case t.state == Stopping:
		t.sleepAsked, t.again = true, 0
	case t.state == Waking:
		t.refuse, t.wakeBy = why, 0
		t.report(Info, "wake given up: %s", why)
		t.state, t.sleepAsked, t.sleptAt, t.sleepWhy = Stopping, true, t.now, why
		for _, p := range t.pods {
			if p.state <= podServing {
				p.sleeping = p.starts()
				t.stop(p, p.grace)
			}
		}
		t.stopRest()
		t.asleepIfGone()
	}
}

// putDown drains the pods that serve. Those that start are not needed any more: the next wake starts from the present
// spec.
func (t *turn) putDown(e IdleSeen) {
	t.state, t.wakeBy = Stopping, 0
	for _, p := range t.pods {
		switch {
		case p.serves():
			var told bool
			if p.idle, told = e.Of[p.ref]; !told {
				p.idle = e.LastPacket
			}
			p.sleeping = true
			t.drain(p, quietTimeout)
		case p.state <= podServing:
			t.stop(p, p.grace)
		}
	}
	if t.pending != nil {
		t.wakeBy = t.now.Add(t.longestGrace() + t.spec.WakeTimeout)
	}
}

// sleepsSoftly reports whether going to sleep can still be taken back: no pod was told to end.
func (m *Machine) sleepsSoftly() bool {
	return m.state == Stopping && m.count(func(p *pod) bool { return p.sleeping && p.state == podDraining }) > 0
}

// quiet decides about a pod that gets no new flow any more.
func (t *turn) quiet(e Quiet) {
	p := t.pod(e.Ref)
	if p == nil || p.state != podDraining || e.Generation < p.drainGen {
		return
	}
	p.quiet, p.open = true, e.OpenFlows
	switch {
	case !p.sleeping:
		t.drained(p)
	case !t.sleepAsked && e.LastPacket > p.idle:
		t.serveAgain("a packet came")
	case t.count(func(q *pod) bool { return q.sleeping && q.state == podDraining && !q.quiet }) == 0:
		t.stopAll()
	}
}

// drained stops a pod that is not needed any more once its flows have ended.
func (t *turn) drained(p *pod) {
	if p.state == podDraining && !p.sleeping && !p.leaving && p.quiet && p.open == 0 {
		t.stop(p, p.grace)
	}
}

// stopAll ends the pods of a service that goes to sleep.
func (t *turn) stopAll() {
	for _, p := range t.pods {
		if p.sleeping {
			t.stop(p, p.grace)
		}
	}
	t.stopRest()
	if t.spec.Rolls && (t.pending != nil || t.again > 0) {
		t.asleep() // who waits does not wait until they are gone
	}
}

// stopRest ends pods that were drained for another reason, if a user wants the service to sleep now.
func (t *turn) stopRest() {
	for _, p := range t.pods {
		if t.sleepAsked && p.state == podDraining {
			t.stop(p, p.grace)
		}
	}
}

// serveAgain takes back a drain.
func (t *turn) serveAgain(why string) {
	t.state, t.wakeBy = Warm, 0
	for _, p := range t.pods {
		switch {
		case !p.sleeping:
		case p.state == podDraining && p.leaving:
			p.sleeping, p.by = false, t.now.Add(p.grace+leaveTimeout)
		case p.state == podDraining:
			p.state, p.sleeping, p.quiet, p.by = podServing, false, false, 0
			if t.pending != nil && !p.confirmed {
				p.by = t.now.Add(t.spec.WakeTimeout)
			}
		default:
			p.sleeping = false
		}
	}
	t.report(Info, "stays awake: %s", why)
	t.unserved("its pods cannot be reached")
}

// asleepIfGone ends Stopping once all processes that it ended are gone.
func (t *turn) asleepIfGone() {
	if t.state == Stopping && !t.deleted && t.count(func(p *pod) bool { return p.sleeping && !p.exited }) == 0 {
		t.asleep()
	}
}

// asleep ends Stopping.
func (t *turn) asleep() {
	t.conclude(ResultCancelled, t.sleepWhy)
	for _, p := range t.pods {
		p.sleeping = false
	}
	waits, n := t.pending, t.again
	t.state, t.message, t.want, t.sleepAsked, t.pending, t.wakeBy, t.startAt = Cold, "", 0, false, nil, 0, 0
	t.report(Info, "sleeps")
	switch {
	case waits != nil:
		t.begin(*waits)
	case n > 0:
		t.beginAsked(n, t.againWhy)
	}
}

func (t *turn) podExited(e PodExited) {
	p := t.pod(e.Ref)
	if p == nil || p.exited {
		return
	}
	p.exited = true
	was := p.state
	t.stop(p, 0)
	t.lost(p, was, exitReason(e))
}

// gone removes a pod of which nothing remains.
func (t *turn) gone(r Ref) {
	p := t.pod(r)
	if p == nil {
		return
	}
	t.drop(p)
	t.lost(p, p.state, "the pod is gone")
}

// lost decides how to go on when a pod's process has ended, or its start failed. was is its state before.
func (t *turn) lost(p *pod, was podState, reason string) {
	switch {
	case t.deleted:
	case p.sleeping:
		if was != podStopping && !p.leaving {
			t.report(Warning, "ended while it was drained: %s", reason)
		}
		t.asleepIfGone()
	case was >= podDraining || p.away:
	case p.surge:
		t.updateFailed(reason)
	case was == podServing:
		t.lostServing(reason)
	case t.state == Waking && t.count((*pod).starts) == 0:
		t.fail(reason)
	case t.state == Waking:
		t.want = max(1, t.want-1)
		t.forget(p)
		t.report(Warning, "one of the pods is lost: %s", reason)
	default:
		t.pace()
		t.message = "a new pod does not serve: " + reason
		t.report(Warning, "%s", t.message)
	}
}

// lostServing decides how to go on without a pod that served.
func (t *turn) lostServing(reason string) {
	switch {
	case t.count((*pod).serves) > 0:
		t.pace()
		t.message = "a pod crashed: " + reason
		t.report(Error, "%s; the others serve on", t.message)
	case t.count(func(p *pod) bool { return p.state == podStarting && !p.away }) > 0:
		t.report(Error, "lost its pod while the replacement starts: %s", reason)
		t.promote()
	default:
		waits := t.pending
		t.state, t.pending, t.want = Cold, nil, 0
		t.pace() // if at least one is wanted, it is started again, but not all the time
		t.message = "crashed: " + reason
		t.report(Error, "crashed: %s; the next connection request wakes it again", reason)
		if waits != nil {
			t.begin(*waits)
		}
	}
}

func (m *Machine) drop(p *pod) {
	m.pods = slices.DeleteFunc(m.pods, func(q *pod) bool { return q == p })
}

func (t *turn) specChanged(e SpecChanged) {
	t.spec = e.Spec
	if t.deleted {
		return
	}
	if e.Restart {
		t.restart()
	}
	if t.state == Waking || t.state == Warm {
		if n := t.spec.clamp(t.want); n != t.want {
			t.resize(n, "the manifest changed its limits")
		}
	}
}

// restart turns to pods of a new spec.
func (t *turn) restart() {
	t.rev++
	switch t.state {
	case Failed:
		t.state, t.message, t.failures, t.retryAt = Cold, "", 0, 0
	case Waking:
		t.wakeBy = t.now.Add(t.spec.Grace + t.spec.WakeTimeout)
		if t.spec.Rolls { // the runtime brings the new ones
			for _, p := range t.pods {
				if p.state == podStarting {
					p.by = t.wakeBy
				}
			}
			return
		}
		t.report(Info, "the manifest changed: the wake begins again")
		t.stopStarting()
		t.tries, t.lastErr, t.startAt = 0, nil, 0
		if t.story != nil {
			t.story.restart()
		}
	case Warm:
		if !t.spec.Rolls {
			t.stopStarting()
		}
	}
}

func (t *turn) stopStarting() {
	for _, p := range t.pods {
		if p.state == podStarting {
			t.stop(p, p.grace)
		}
	}
}

func (t *turn) delete() {
	if t.deleted {
		return
	}
	t.deleted = true
	if t.state != Cold && t.state != Failed {
		t.refuse = "the service was removed"
		t.conclude(ResultCancelled, t.refuse)
	}
	for _, p := range t.pods {
		t.stop(p, p.grace)
	}
	t.pending, t.wakeBy, t.again, t.state, t.message = nil, 0, 0, Stopping, ""
	t.report(Info, "removed")
}

// adopt takes a pod that was found running as one that serves. Whether it listens is the
// daemon's to say: until then it is published as starting, and no deadline ends it, for its open
// connections go on even while no daemon is there.
func (t *turn) adopt(e Adopted) {
	if t.deleted || !e.Leaving && (t.state == Waking || t.state == Stopping) {
		t.appeared(e.Ref)
		return
	}
	p := t.foundPod(e.Ref)
	if p == nil {
		return
	}
	if e.Leaving { // all that can be done for it is to let its connections end
		p.started, p.listened, p.leaving = true, true, true
		t.drain(p, p.grace+leaveTimeout)
		return
	}
	p.state, p.started, p.listened = podServing, true, true
	if t.state != Warm {
		t.state, t.message, t.want, t.startAt = Warm, "", 0, 0
		t.report(Info, "warm: its pod was found running")
	} else {
		t.report(Info, "one more of its pods was found running")
	}
	t.want = max(t.want, t.active())
	if t.pending != nil {
		p.by = t.now.Add(t.spec.WakeTimeout)
	}
}

// foundPod makes a pod that the machine did not ask for; nil if its number is used already, or there are too many.
func (t *turn) foundPod(r Ref) *pod {
	if r <= t.lastRef || len(t.pods) >= maxPods {
		return nil
	}
	t.lastRef = r - 1
	p := t.newPod()
	p.network, p.foreign = true, true
	return p
}

// due is when a pod that starts now must listen, if clients wait.
func (t *turn) due() monotime.Time {
	if t.state == Waking {
		return t.wakeBy
	}
	return t.now.Add(t.spec.WakeTimeout)
}

// resize changes how many pods there shall be.
func (t *turn) resize(n int, why string) {
	t.report(Info, "scaled from %d to %d: %s", t.want, n, why)
	t.want = n
	t.takeBack()
	t.surplus()
}

// scaledTo tells why pods are started or stopped for which no client asked.
func scaledTo(n int, why string) string {
	if why == "" {
		return fmt.Sprintf("scaled to %d", n)
	}
	return fmt.Sprintf("scaled to %d: %s", n, why)
}
