// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// This file handles the events of one pod, from either source. All functions are called with the lock held.

// unknownCode is the exit status of a process whose end was not observed: as if SIGKILL had ended it.
const unknownCode = 128 + 9

// networkReady records a pod's network, and delivers the pod once it has an address: to the Start that
// waits longest, or by Appeared. inherited: the pod existed before this process, and is for List to deliver.
func (r *Runtime) networkReady(p *pod, from runtime.Pod, at monotime.Time, inherited bool) {
	if from.Addr.IsValid() {
		p.rt.Addr = from.Addr
	}
	if from.Netns != "" {
		p.rt.Netns = from.Netns
	}
	if from.Node != "" {
		p.rt.Node, p.rt.NodeAddr = from.Node, from.NodeAddr
	}
	if p.is(podStopping|podFailed|podDelivered) || inherited || !p.rt.Addr.IsValid() {
		return
	}
	p.set(podDelivered)
	s := p.service
	// A pod that leaves may have connections, so a new leader must learn of it.
	if p.rt.Leaving = p.is(podLeaving); p.is(podLeaving) || len(s.waiters) == 0 {
		r.appeared.put(p.rt)
		r.deliverKeptExit(p)
		return
	}
	w := s.assign(p)
	w.report(step{phase: runtime.PhaseSandbox, at: at, pod: p.rt})
	if p.exit != nil {
		w.report(step{exited: true})
	}
	r.reportTrouble(s, trouble{})
}

// assign gives a pod to the Start that waits longest.
func (s *service) assign(p *pod) *waiter {
	w := s.waiters[0]
	s.waiters = s.waiters[1:]
	p.waiter, w.pod = w, p
	p.set(podDelivered)
	return w
}

// containerStep handles that the main container was created or started.
func (r *Runtime) containerStep(p *pod, phase runtime.Phase, at monotime.Time) {
	if phase == runtime.PhaseStarted && p.rt.Started == 0 {
		p.rt.Started = at
	}
	if p.waiter != nil {
		p.waiter.report(step{phase: phase, at: at, pod: p.rt})
	} else if phase == runtime.PhaseStarted {
		r.reportTrouble(p.service, trouble{})
	}
}

// processEnded handles the end of the main container's process, with its cause if that is known.
func (r *Runtime) processEnded(p *pod, code uint32, why cause) {
	p.rt.Started = 0
	if p.waiter != nil {
		p.waiter.report(step{exited: true})
	}
	r.exited(p, exitStatus{code, !p.is(podStopping | podLeaving), why})
}

// exited delivers the end of a pod's process, once, and once more if it was taken for a crash and its cause becomes
// known later: a daemon reports the end at once, kubelet says why only when all containers have ended. For a pod that
// was not delivered yet, it is kept until then.
func (r *Runtime) exited(p *pod, status exitStatus) {
	switch {
	case p.is(podExited) && p.is(podCrashed) && !p.is(podExplained) && status.cause.text != "":
		p.set(podExplained)
		r.exits.put(exitOf(p, status, true))
	case p.is(podExited):
	case p.waiter != nil || !p.is(podDelivered):
		p.exit = &status
	default:
		p.set(podExited)
		if status.crashed {
			p.set(podCrashed)
		}
		if status.cause.text != "" {
			p.set(podExplained)
		}
		r.deliverExit(p, status)
	}
}

// explainGone delivers why a pod ended that was forgotten as soon as it was gone from its node, if its last state in
// the API says so.
func (r *Runtime) explainGone(o *corev1.Pod) {
	p := r.gone.unexplained[string(o.UID)]
	if p == nil {
		return
	}
	if why := causeOf(o, p.container); why.text != "" {
		delete(r.gone.unexplained, p.rt.ID)
		r.exited(p, exitStatus{code: unknownCode, cause: why})
	}
}

// deliverKeptExit delivers the end of the process of a pod that was just delivered, if it has ended.
func (r *Runtime) deliverKeptExit(p *pod) {
	if p.exit != nil {
		r.exited(p, *p.exit)
	}
}

// deliverExit delivers the end of a pod's process. After a crash it has the end of the log, if messages may have that.
func (r *Runtime) deliverExit(p *pod, status exitStatus) {
	e := exitOf(p, status, false)
	if !status.crashed || status.cause.outside || r.closed || !r.cfg.LogsInMessages {
		r.exits.put(e)
		return
	}
	r.workers.Go(func() {
		e.LogTail = r.crashLog(p)
		r.exits.put(e)
	})
}

// exitOf returns the Exit of a pod.
func exitOf(p *pod, status exitStatus, explains bool) runtime.Exit {
	return runtime.Exit{
		PodID: p.rt.ID, Service: p.rt.Service, Code: status.code, At: time.Now(), Cause: status.cause.text,
		Outside: status.cause.outside, Explains: explains,
	}
}

// deleting handles that a pod is being deleted, by others or here.
func (r *Runtime) deleting(p *pod, o *corev1.Pod) {
	if p.is(podLeaving) {
		return
	}
	p.set(podLeaving)
	r.podLost(p)
	why := causeOf(o, p.container)
	if !why.outside {
		why = cause{}
	}
	switch {
	case p.is(podStopping):
	case p.waiter != nil:
		p.waiter.fail(retryable{cmp.Or(why.text, "pod "+p.name+" was deleted while it started")})
	case p.is(podDelivered):
		r.leaving.put(runtime.Leave{PodID: p.rt.ID, Cause: why.text})
	}
}

// failedForGood handles a pod that will not run again; its ReplicaSet replaces it.
func (r *Runtime) failedForGood(p *pod, o *corev1.Pod) {
	if p.is(podFailed) {
		return
	}
	p.set(podFailed)
	r.podLost(p)
	why := causeOf(o, p.container)
	if p.waiter != nil {
		reason := why.text
		if !why.outside {
			reason = "pod " + p.name + " failed: " + reason
		}
		p.waiter.fail(retryable{reason})
	}
	code, ended := exitCodeOf(o, p.container)
	if !ended {
		code = unknownCode
	}
	r.exited(p, exitStatus{code: code, cause: why})
}

// removed forgets a pod that is gone completely.
func (r *Runtime) removed(p *pod) {
	s := p.service
	if r.byUID[p.rt.ID] != p {
		return
	}
	now := time.Now()
	delete(r.byUID, p.rt.ID)
	delete(s.pods, p.rt.ID)
	if len(s.pods) == 0 {
		s.emptySince = now
	}
	r.gone.add(p.rt.ID, now)
	r.gone.expectLog(p)
	if p.is(podCrashed) && !p.is(podExplained) {
		r.gone.await(p)
	}
	if p.waiter != nil {
		p.set(podLeaving)
		p.waiter.fail(retryable{"pod " + p.name + " is gone while it starts"})
	}
	r.exited(p, exitStatus{code: unknownCode})
	close(p.gone)
	r.reportTrouble(s, trouble{})
	r.resizeBackoff.Forget(p.rt.ID)
	r.tellReservations(s)
	r.podLost(p)
	r.notify()
	r.dropService(s)
}

// podLost replaces a direct pod that is leaving or has failed.
func (r *Runtime) podLost(p *pod) {
	p.service.machine.podLost(p.rt.ID)
	r.schedule(p.service)
}

// heldUp records why a pod does not start.
func (r *Runtime) heldUp(p *pod, o *corev1.Pod) {
	s := p.service
	w := p.waiter
	if w == nil && !p.is(podDelivered) && len(s.waiters) > 0 {
		w = s.waiters[0]
	}
	if p.is(podStopping|podLeaving) || p.rt.Started != 0 || p.exit != nil {
		return
	}
	r.holdUp(p, w, troubleOf(o, p.container))
}

// holdUp records the trouble of a pod, for the Start that it is for if there is one. The lock is held.
func (r *Runtime) holdUp(p *pod, w *waiter, t trouble) {
	s := p.service
	switch {
	case t.reason == "":
	case w == nil:
		r.reportTrouble(s, t)
	case t.fatal:
		if p.waiter == nil { // no daemon has reported it: this is the pod that the Start gets
			s.assign(p)
		}
		w.fail(t)
	default:
		w.hold(t.reason)
		r.reportTrouble(s, t)
	}
}

// reportTrouble reports why a service's pods do not start, if that has changed.
func (r *Runtime) reportTrouble(s *service, t trouble) {
	if s.reported != t {
		s.reported = t
		r.cfg.Trouble(s.key, Trouble{Reason: t.reason, Unschedulable: t.unschedulable, Lost: t.lost})
	}
}
