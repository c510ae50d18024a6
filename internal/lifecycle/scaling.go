// SPDX-License-Identifier: Apache-2.0

package lifecycle

// scale makes the service have N pods.
func (t *turn) scale(e Scale) {
	if t.deleted {
		return
	}
	if e.N <= 0 && t.spec.Min == 0 {
		t.sleep(scaledTo(0, e.Why))
		return
	}
	n := t.spec.clamp(e.N)
	switch t.state {
	case Cold, Failed:
		t.beginAsked(n, scaledTo(n, e.Why))
	case Waking, Warm:
		if n != t.want {
			t.resize(n, e.Why)
		}
	case Stopping:
		if t.sleepsSoftly() && !t.sleepAsked {
			t.want = n
			t.serveAgain(scaledTo(n, e.Why))
			t.surplus()
			return
		}
		t.again, t.againWhy = n, scaledTo(n, e.Why)
		if t.spec.Rolls && !t.sleepsSoftly() {
			t.asleep()
		}
	}
}

// surplus takes pods away that are more than wanted: those that start first, then those with the fewest open flows.
func (t *turn) surplus() {
	for t.active() > t.want {
		t.retire(t.victim(func(p *pod) bool { return p.serves() || p.starts() }))
	}
}

// watchSurplus sees to it that pods which others started, beyond what is wanted, do not stay. While the runtime replaces
// pods, it is its business that there are more.
func (t *turn) watchSurplus() {
	switch {
	case t.state != Waking && t.state != Warm || t.active() <= t.want:
		t.surplusAt = 0
	case !t.spec.Rolls:
		t.surplus()
	case t.surplusAt == 0:
		t.surplusAt = t.now.Add(surplusPatience)
	}
}

// retire gives a pod no new flow, and ends it when its flows have ended, or when the drain timeout has come. What is still
// open then are connections that nobody closes: kept ones, idle or busy. The pod's SIGTERM tells its server to close them,
// and leaves it the grace to do so between two requests. No request is lost by that if the server answers what it was
// asked on each connection before it closes it; a client whose request crosses the close of an idle connection asks again
// on another one, as HTTP clients do (RFC 9112, section 9.3.1). The gate itself resets nothing: it cannot know whether a
// connection that is silent waits for an answer.
func (t *turn) retire(p *pod) {
	if p.listened {
		t.drain(p, t.spec.drainTimeout())
		return
	}
	t.stop(p, p.grace)
	t.forget(p)
}

// takeBack has drained pods serve again instead of starting others.
func (t *turn) takeBack() {
	for i := len(t.pods) - 1; t.state == Warm && i >= 0 && t.missing() > 0; i-- {
		p := t.pods[i]
		if p.state == podDraining && p.confirmed && p.rev == t.rev && !p.sleeping && !p.leaving && !p.away && !p.exited {
			p.state, p.quiet, p.by = podServing, false, 0
		}
	}
}

// victim is the pod that is missed least; nil if there is none.
func (m *Machine) victim(is func(*pod) bool) *pod {
	var best *pod
	for _, p := range m.pods {
		if is(p) && (best == nil || p.missedLess(best, m.rev)) {
			best = p
		}
	}
	return best
}

// missedLess orders pods for scaling in: who does not serve yet, who has an old spec, who has few flows, who is young.
func (p *pod) missedLess(q *pod, rev uint32) bool {
	if p.listened != q.listened {
		return !p.listened
	}
	if p.confirmed != q.confirmed {
		return !p.confirmed
	}
	if (p.rev == rev) != (q.rev == rev) {
		return p.rev != rev
	}
	if p.open != q.open {
		return p.open < q.open
	}
	return p.ref > q.ref
}

// appeared takes a pod that somebody else started.
func (t *turn) appeared(r Ref) {
	p := t.foundPod(r)
	switch {
	case p == nil:
	case t.deleted:
		t.stop(p, p.grace)
	case t.state == Stopping:
		p.sleeping = true
		t.stop(p, p.grace)
	case t.state == Cold || t.state == Failed:
		t.beginFor(p, "somebody else started a pod")
	case t.state == Waking:
		p.by = t.wakeBy
		if t.story != nil && t.story.ref == 0 {
			t.story.ref = p.ref
		}
	}
}

// beginFor begins to wait for a pod that the machine did not ask for.
func (t *turn) beginFor(p *pod, why string) {
	t.beginAsked(1, why)
	t.wakeBy, t.tries = t.now.Add(t.spec.WakeTimeout), 1
	p.by = t.wakeBy
}

// leaving drains a pod that somebody else takes away.
func (t *turn) leaving(r Ref) {
	p := t.pod(r)
	if p == nil || p.leaving || p.exited || p.state == podStopping {
		return
	}
	p.leaving = true
	was := p.state
	switch {
	case p.sleeping: // it is drained, and others end it
		return
	case was == podDraining:
		p.by = t.now.Add(p.grace + leaveTimeout)
		return
	}
	t.drain(p, p.grace+leaveTimeout)
	switch {
	case p.surge:
		p.surge = false
		t.updateFailed("somebody else took the new pod away")
	case p.away:
	case was == podServing:
		t.report(Info, "somebody else takes a pod away: it is drained")
		t.unserved("its last pod is taken away")
	default:
		t.forget(p)
	}
}

// away counts a pod no more whose home node is not heard. Its connections go on, if it lives.
func (t *turn) away(r Ref) {
	p := t.pod(r)
	if p == nil || p.away || p.surge {
		return
	}
	p.away = true
	switch p.state {
	case podStarting:
		t.forget(p)
	case podServing:
		p.by = 0
		t.report(Warning, "nothing is heard of the node of a pod: it gets no new connections")
		t.unserved("nothing is heard of the node of its last pod")
	}
}

// back takes a pod again whose home node is heard again, once that says that it listens.
func (t *turn) back(r Ref) {
	p := t.pod(r)
	if p == nil || !p.away {
		return
	}
	p.away = false
	if p.state > podServing {
		return
	}
	p.state, p.confirmed = podStarting, false
	switch t.state {
	case Cold, Failed:
		t.beginFor(p, "the node of a pod is heard again")
	case Stopping:
		if !t.deleted {
			p.sleeping = true
		}
		t.stop(p, p.grace)
	default:
		p.by = t.due()
		t.surplus()
	}
}

// unserved goes on when the last pod that served is not lost, but cannot be used.
func (t *turn) unserved(why string) {
	switch {
	case t.state != Warm || t.count((*pod).serves) > 0:
	case t.count(func(p *pod) bool { return p.state == podStarting && !p.away }) > 0:
		t.report(Info, "waits for the pod that starts: %s", why)
		t.promote()
	default:
		t.pending = nil
		t.beginAsked(max(t.want, 1), why)
	}
}
