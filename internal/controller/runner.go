// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// stopRetries are the pauses between attempts to stop a pod that the runtime fails to stop.
var stopRetries = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Cap: 5 * time.Second, Steps: math.MaxInt}

// returnPatience is how long the start of a pod that serves already may go on when the pod is to stop.
const returnPatience = 5 * time.Second

// runner starts and stops pods. Slow work runs on goroutines of its own, which post the outcome to the loop.
type runner struct {
	runtime  runtime.Runtime
	loop     *loop
	workers  *workers
	events   *hub
	preparer *preparer
	table    *table
	nodes    *nodes
	deliver  deliver
	cluster  bool
	slots    chan struct{} // has one element for each start in progress

	laggards *laggards

	orphans int // pods of no service that are being stopped
	// orphanGone is called when one of them is gone.
	orphanGone func()
}

// start starts a pod of a service.
func (r *runner) start(s *service, ref lifecycle.Ref) {
	p := s.addPod(ref)
	if r.loop.idle() {
		return
	}
	ctx, cancel := context.WithCancel(r.workers.ctx)
	p.cancel = cancel
	w := s.wanted
	r.workers.group.Go(func() {
		rt, err := r.runStart(ctx, p, w)
		r.loop.post(func() { r.started(p, rt, err) })
	})
}

// startNews is how long the image of a pod may be missing before that is said.
const startNews = time.Second

// runStart waits for a free slot and starts a pod. A missing image is fetched first: starts that wait for a registry
// must not occupy slots.
func (r *runner) runStart(ctx context.Context, p *pod, w *wanted) (runtime.Pod, error) {
	waits := func(why string) {
		r.loop.post(func() { r.deliver(p.service, lifecycle.Waits{Ref: p.ref, For: why}) })
	}
	said := time.AfterFunc(startNews, func() { waits(fmt.Sprintf("image %q is being fetched", w.spec.Spec.Image)) })
	err := r.preparer.prepare(ctx, w)
	if !said.Stop() {
		waits("")
	}
	if err != nil {
		return runtime.Pod{}, err
	}
	select {
	case r.slots <- struct{}{}:
	default:
		waits(fmt.Sprintf("%d other pods are being started, as many as are at once", cap(r.slots)))
		select {
		case r.slots <- struct{}{}:
			waits("")
		case <-ctx.Done():
			return runtime.Pod{}, ctx.Err()
		}
	}
	defer func() { <-r.slots }()
	return r.runtime.Start(ctx, w.spec, runtime.StartHooks{
		Phase: func(ph runtime.Phase, at monotime.Time) {
			r.loop.post(func() {
				r.deliver(p.service, lifecycle.PhaseEnded{Ref: p.ref, Phase: lifecycle.PhaseName(ph), At: at})
			})
		},
		Network: func(rt runtime.Pod) {
			r.loop.post(func() {
				r.identify(p, rt)
				r.deliver(p.service, lifecycle.NetworkReady{Ref: p.ref})
			})
		},
		Waits: waits,
	})
}

// identify makes a pod known by its names, and watches over its home node.
func (r *runner) identify(p *pod, rt runtime.Pod) {
	r.table.identify(p, rt)
	if s := p.service; rt.SpecHash == s.hash {
		s.imageErr = "" // it is here by now
		if rt.ImageDigest != "" {
			s.images.Digests.Ran(s.spec.Spec.Image, rt.ImageDigest)
		}
	}
	r.nodes.watch(p)
}

// started handles the outcome of a start.
func (r *runner) started(p *pod, rt runtime.Pod, err error) {
	p.cancel()
	p.returned = true
	switch {
	case err == nil && p.stopping:
		r.identify(p, rt)
		r.runStop(p)
	case err == nil:
		r.identify(p, rt)
		r.deliver(p.service, lifecycle.Started{Ref: p.ref})
		if p.early != nil {
			r.exited(p, *p.early)
		}
	case p.stopping && p.id != 0 && errors.Is(err, runtime.ErrUnavailable):
		r.runStop(p) // the runtime may have left something behind
	case p.stopping:
		r.stopped(p)
	default:
		r.deliver(p.service, lifecycle.StartFailed{
			Ref: p.ref, Err: errors.New(bare(p.service.key, err)), Retryable: errors.Is(err, runtime.ErrUnavailable),
		})
		if !p.stopping { // otherwise it did listen, and is being stopped
			r.table.removePod(p)
		}
	}
}

// stopped handles the end of a pod. The machine publishes the remaining pods while this one is still in the table.
func (r *runner) stopped(p *pod) {
	p.slow = ""
	r.deliver(p.service, lifecycle.StopDone{Ref: p.ref})
	r.table.removePod(p)
}

// stop stops a pod. If its start is in progress, the pod is stopped when Start returns: that is at once, unless the pod
// serves already. A process can listen before the runtime has reported that it runs, and then has its grace period for
// its connections.
func (r *runner) stop(p *pod, grace time.Duration) {
	if r.loop.idle() {
		return
	}
	p.stopping, p.grace = true, grace
	switch {
	case p.returned:
		r.runStop(p)
	case p.served:
		time.AfterFunc(min(grace, returnPatience), p.cancel)
	default:
		p.cancel()
	}
}

func (r *runner) runStop(p *pod) {
	r.work(p.service.key, p.rt.ID, p.grace, func() { r.stopped(p) })
}

// stopOrphan stops a pod of no service.
func (r *runner) stopOrphan(rt runtime.Pod, grace time.Duration) {
	r.orphans++
	r.work(rt.Service, rt.ID, grace, func() {
		r.orphans--
		r.orphanGone()
	})
}

// work stops a pod, repeating failed attempts, and then runs done on the loop.
func (r *runner) work(k v1alpha1.Key, id string, grace time.Duration, done func()) {
	if r.loop.idle() {
		return
	}
	r.workers.group.Go(func() {
		ctx := r.workers.stopCtx
		for pauses := stopRetries; ; {
			err := r.runtime.Stop(ctx, id, grace)
			if err == nil {
				r.loop.post(done)
				return
			}
			if ctx.Err() != nil {
				return
			}
			pause := pauses.Step()
			text := fmt.Sprintf("pod %s cannot be stopped, tried again in %s: %s", id, pause, bare(k, err))
			r.events.report(k, v1alpha1.EventProblem, status.SeverityWarning, text)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	})
}

// exited handles the exit of a pod's process. While the pod is being started, its process may have ended because the
// runtime itself did: Start returns the reason, and is handled first, unless the pod serves already.
func (r *runner) exited(p *pod, e runtime.Exit) {
	if !p.returned && !p.stopping && p.published != lifecycle.PodServing {
		p.early = &e
		return
	}
	p.slow = ""
	p.service.crashed = crashed{e.PodID, p.ref}
	r.deliver(p.service, endOf(p.ref, e))
}

// explained handles why the process of a pod ended of which nothing remains.
func (r *runner) explained(e runtime.Exit) {
	if s := r.table.services[e.Service]; s != nil && s.crashed.id == e.PodID {
		r.deliver(s, endOf(s.crashed.ref, e))
	}
}

// endOf is the event of a service's machine for an exit.
func endOf(ref lifecycle.Ref, e runtime.Exit) lifecycle.Event {
	detail := e.Cause
	if e.Cause != "" && e.LogTail != "" {
		detail += ": "
	}
	detail += e.LogTail
	exited := lifecycle.Exited{Ref: ref, Code: e.Code, Detail: detail}
	switch {
	case e.Outside:
		return lifecycle.Ended{Ref: ref, Why: e.Cause}
	case e.Explains:
		return lifecycle.Ended{Ref: ref, Why: exited.Reason(), Crashed: true}
	}
	return exited
}

// killedCode is the exit status of a process that SIGKILL has ended.
const killedCode = 128 + 9

// giveUp ends a pod as if its process had been killed. why is for users.
func (r *runner) giveUp(p *pod, why string) {
	r.exited(p, runtime.Exit{PodID: p.rt.ID, Service: p.service.key, Code: killedCode, At: time.Now(), Cause: why})
}

// readExits reads the exits of processes until the controller ends, and on one machine the stop signals that they get;
// those of a cluster the adopter reads.
func (r *runner) readExits() {
	ending := r.runtime.Ending()
	if r.cluster {
		ending = nil
	}
	for {
		select {
		case e, open := <-r.runtime.Exits():
			if !open {
				return
			}
			r.loop.post(func() {
				if p := r.table.byRuntime[e.PodID]; p != nil {
					r.exited(p, e)
				} else if e.Explains {
					r.explained(e)
				}
			})
		case end := <-ending:
			r.loop.post(func() {
				if p := r.table.byRuntime[end.PodID]; p != nil {
					r.laggards.ending(p, end)
				}
			})
		case <-r.workers.ctx.Done():
			return
		}
	}
}

const (
	// slowStop is how long a process may take to end after its stop signal before that is reported.
	slowStop = 2 * time.Second
	// kubeletSlack is added on a cluster, where the time of the signal is estimated: kubelet of a busy node sends it late,
	// and reports late that the process has ended.
	kubeletSlack = 3 * time.Second
	// lateTogether is the time in which such pods are reported together, and lateAlone how many of them have an event of
	// their own. The status of each service names them in any case.
	lateTogether = time.Second
	lateAlone    = 10
)

// laggards reports pods that do not end soon after their stop signals. It belongs to the loop.
type laggards struct {
	loop    *loop
	nodes   *nodes
	events  *hub
	changed *changedSet
	cluster bool
	late    []latePod // those not reported yet
}

// latePod is a pod that did not end soon after its stop signal.
type latePod struct {
	service v1alpha1.Key
	name    string
	text    string
}

// ending reports a pod if it does not end soon after its stop signal.
func (l *laggards) ending(p *pod, end runtime.Ending) {
	patience := slowStop
	if l.cluster {
		patience += kubeletSlack
	}
	if end.Grace > patience {
		l.loop.after(end.Signal+patience, func() { l.slow(p, end) })
	}
}

// slow notes a pod that has not ended on its stop signal, unless its node may not have reported that.
func (l *laggards) slow(p *pod, end runtime.Ending) {
	if p.service.pod(p.ref) != p || p.state() == lifecycle.PodExited || !l.nodes.heard(p) ||
		end.Ended != nil && end.Ended() {
		return
	}
	name := cmp.Or(p.rt.Name, p.rt.ID)
	p.slow = fmt.Sprintf("pod %s did not end within %s of its stop signal: it is killed %s after the signal. %s",
		name, slowStop, end.Grace.Round(time.Second), lateAdvice)
	l.changed.check(p.service)
	if l.late = append(l.late, latePod{p.service.key, name, p.slow}); len(l.late) == 1 {
		l.loop.after(lateTogether, l.report)
	}
}

// report reports the pods that slow has noted.
func (l *laggards) report() {
	list := l.late
	l.late = nil
	if len(list) > lateAlone {
		l.events.report("", "", status.SeverityWarning, lateSummary(list))
		return
	}
	for _, p := range list {
		l.events.report(p.service, v1alpha1.EventProblem, status.SeverityWarning, p.text)
	}
}

// lateAdvice says what to do about pods that do not end.
const lateAdvice = "Let the program end on SIGTERM, or name the signal on which it ends as stopSignal, " +
	"or lower terminationGracePeriodSeconds"

// lateSummary reports many pods in one sentence.
func lateSummary(list []latePod) string {
	services := map[v1alpha1.Key]bool{}
	for _, p := range list {
		services[p.service] = true
	}
	return fmt.Sprintf("%d pods of %d services, pod %s of %s among them, did not end within %s of their stop signals: "+
		"they are killed after their grace periods. The status of each service has the details. %s",
		len(list), len(services), list[0].name, list[0].service, slowStop, lateAdvice)
}
