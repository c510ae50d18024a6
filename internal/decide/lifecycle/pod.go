// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// podLife is what the machine has decided about a pod. It only increases, except when a drain is cancelled or a
// silent node returns.
type podLife uint8

const (
	lifeReplacing podLife = iota // starts to replace a pod of an older spec, which serves until then
	lifeStarting                 // starts, and counts as a pod that will serve soon
	lifeServing                  // listens, or was adopted
	lifeDraining                 // published as draining
	lifeDrained                  // drained, and no gate gives it new flows any more
	lifeStopping                 // StopPod was issued
	lifeExited                   // StopPod was issued, and its process has ended
)

// podProgress is how far a pod has come towards serving. The steps come in this order, but some may be skipped.
type podProgress uint8

const (
	podCreated   podProgress = iota // StartPod was issued
	podNetwork                      // has a network: it can be published
	podRunning                      // its process runs
	podListened                     // its socket was seen to listen, or it was adopted
	podConfirmed                    // its socket was seen to listen by a daemon that is still there
)

// podOrigin is what a pod was started for, or by.
type podOrigin uint8

const (
	originScale   podOrigin = iota // started while others serve
	originCrowd                    // started while no pod served: shares the parked SYNs
	originOutside                  // not started by the machine
)

// podFlags are further facts about a pod, independent of each other.
type podFlags uint8

const (
	podSleeping podFlags = 1 << iota // it ends because the service goes to sleep
	podLeaving                       // it is being removed from outside
	podAway                          // the daemon on its home node is silent
	podProbed                        // it listens, and its readinessProbe has not succeeded since then
	podDeaf                          // it served, and does not listen any more
	podFrozen                        // its processes are frozen
	podHurried                       // drained: it is stopped without waiting for its open flows, as its successor waits
)

// pod is the machine's record of a pod.
type pod struct {
	ref      Ref
	life     podLife
	progress podProgress
	origin   podOrigin
	flags    podFlags

	rev       uint32                         // of the spec from which it was started
	grace     time.Duration                  // of the same spec
	answer    string                         // probed: what its readinessProbe said last
	waits     string                         // for what its start waits; empty if that is not known
	sockets   sockets                        // where it listens while it does not serve, or not at all ports
	open      PortSet                        // the ports of the service for which it listens
	served    monotime.Time                  // when it began to serve; zero if that was before it was adopted
	openFlows uint32                         // as last reported
	lastIdle  monotime.Time                  // sleeping: its last packet, as reported before the drain
	drainGen  uint64                         // the first generation that published it as draining
	deadline  monotime.Time                  // for what its state waits for; zero for none
	phases    [len(phaseNames)]monotime.Time // when the phases of its start ended
}

// is reports whether any of the given flags is set.
func (p *pod) is(f podFlags) bool { return p.flags&f != 0 }

func (p *pod) set(f podFlags) { p.flags |= f }

func (p *pod) unset(f podFlags) { p.flags &^= f }

// change sets or unsets a flag.
func (p *pod) change(f podFlags, on bool) {
	if p.unset(f); on {
		p.set(f)
	}
}

// state is the pod's state as users and daemons see it.
func (p *pod) state() PodState {
	switch {
	case p.life == lifeExited:
		return PodExited
	case p.stopped():
		return PodStopping
	}
	if state, published := p.backend(); published {
		return state
	}
	return PodStarting
}

// backend returns the pod's published state, and whether it is published at all. A pod that never
// listened is not published as draining; one whose process has ended is, because its last segments may still be on
// their way to clients.
func (p *pod) backend() (state PodState, published bool) {
	switch {
	case p.starting():
		return PodStarting, p.progress >= podNetwork
	case p.serves() && p.progress < podConfirmed:
		return PodStarting, true
	case p.serves():
		return PodServing, true
	}
	return PodDraining, p.progress >= podListened
}

// serves reports whether the pod counts as serving.
func (p *pod) serves() bool { return p.life == lifeServing && !p.is(podAway) }

// starts reports whether the pod counts as one that will serve soon.
func (p *pod) starts() bool { return p.life == lifeStarting && !p.is(podAway) }

// starting reports whether the pod has been started and does not serve yet, for whatever reason it was started.
func (p *pod) starting() bool { return p.life < lifeServing }

// startsReachable is starting, except for pods on silent nodes.
func (p *pod) startsReachable() bool { return p.starting() && !p.is(podAway) }

// runs reports whether its process was seen to run, and its socket never to listen.
func (p *pod) runs() bool { return p.progress == podRunning || p.phases[phaseIndex(PhaseStarted)] != 0 }

// drains reports whether the pod is being drained and has not been stopped.
func (p *pod) drains() bool { return p.life == lifeDraining || p.life == lifeDrained }

// drainsForSleep is drains, for a pod that ends because the service goes to sleep.
func (p *pod) drainsForSleep() bool { return p.is(podSleeping) && p.drains() }

// stopped reports whether StopPod was issued.
func (p *pod) stopped() bool { return p.life >= lifeStopping }

// reach notes the pod's progress.
func (p *pod) reach(progress podProgress) { p.progress = max(p.progress, progress) }

// lastAnswer is what the pod's readinessProbe said last.
func (p *pod) lastAnswer() string {
	if p.answer == "" {
		return "it has not answered yet"
	}
	return p.answer
}

// unconfirm forgets that the pod was seen to listen by a daemon that is still there.
func (p *pod) unconfirm() { p.progress = min(p.progress, podListened) }

// missedLess orders pods for scaling in: pods that do not serve yet first, then pods of an old spec, pods with few open
// flows, and young pods.
func (p *pod) missedLess(q *pod, rev uint32) bool {
	pp, qp := max(p.progress, podRunning), max(q.progress, podRunning) // what comes before listening makes no difference
	switch {
	case pp != qp:
		return pp < qp
	case p.serves() != q.serves():
		return q.serves()
	case (p.rev == rev) != (q.rev == rev):
		return p.rev != rev
	case p.openFlows != q.openFlows:
		return p.openFlows < q.openFlows
	}
	return p.ref > q.ref
}
