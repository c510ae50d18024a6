// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// A start, from the call to its requests:
//
//	Start    adds a waiter to the service, and one pod to the wanted number
//	drive    has the machine bring the number of pods to the wanted one: machine.next decides on an action (machine.go),
//	         perform carries it out, and machine.done gets the result
//	follow   waits for what the API server and the daemons report of the waiter's pod (reports.go, pods.go)
//	abandon  undoes all of it if the start fails
//
// The machine makes no single pods: createSingle (single.go) does, while follow waits.

// explanationTimeout is how long the API may take to explain why a process ended before it was reported to run.
const explanationTimeout = 2 * time.Second

// Start implements runtime.Runtime. It reports PhaseSandbox, PhaseCreated and PhaseStarted; the end of PhaseImage
// cannot be seen from outside. The pod is the next one of the service that appears.
//
// Start waits for a pod that fits nowhere until shortly before the service's wakeTimeout, so that the reason is
// reported in time. If Start fails, what remains of the pod is removed in the background.
func (r *Runtime) Start(
	ctx context.Context, service *v1alpha1.WangellService, hooks runtime.StartHooks,
) (runtime.Pod, error) {
	key, single := v1alpha1.KeyOf(service), service.Spec.Strategy() == v1alpha1.UpdateRecreate
	w := newWaiter()
	r.mu.Lock()
	if r.retired {
		r.mu.Unlock()
		return runtime.Pod{}, fmt.Errorf("service %s: %w: closed", key, runtime.ErrUnavailable)
	}
	r.starts++
	s := r.ensureService(key)
	if !single {
		s.wantMore()
	}
	s.waiters = append(s.waiters, w)
	r.mu.Unlock()

	var started runtime.Pod
	var err error
	abandon := func() { r.abandon(s, w) }
	if single {
		creating, end := context.WithCancel(ctx)
		created := make(chan string, 1)
		go func() { created <- r.createSingle(creating, s, w, v1alpha1.Hash(&service.Spec)) }()
		started, err = r.follow(ctx, s, w, hooks, startTimeout(service))
		end()
		uid := <-created
		abandon = func() { r.abandonSingle(s, w, uid) }
	} else if err = r.drive(ctx, s, unwritten); err == nil {
		started, err = r.follow(ctx, s, w, hooks, startTimeout(service))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts--
	if err == nil {
		w.pod.waiter = nil
		r.deliverKeptExit(w.pod)
		r.schedule(s)
		return started, nil
	}
	abandon()
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("service %s: start: %w", key, err)
	}
	return runtime.Pod{}, err
}

// startTimeout is how long to wait for a pod that is held up: the wakeTimeout minus a tenth of it, at most a second,
// which leaves time to report the reason.
func startTimeout(s *v1alpha1.WangellService) time.Duration {
	t := time.Duration(s.Spec.WakeTimeout) * time.Second
	if t == 0 {
		t = v1alpha1.DefaultWakeTimeout * time.Second
	}
	return t - min(t/10, time.Second)
}

// drive carries out one sequence of a service's machine from beginning to end, if begin allows it. Calls for one
// service take turns.
func (r *Runtime) drive(ctx context.Context, s *service, begin func(*machine, observation) bool) error {
	select {
	case s.writing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		<-s.writing
		r.schedule(s)
		r.dropService(s)
	}()
	m := &s.machine
	if !begin(m, r.observe(s, time.Now())) {
		return nil
	}
	handsOver := false
	defer func() {
		if handsOver {
			r.handOvers--
		}
	}()
	for epoch := m.epoch; ; {
		a := m.next(r.observe(s, time.Now()))
		if m.stage == idle {
			break
		}
		if m.stage == handScaling && !handsOver {
			handsOver = true
			r.handOvers++
		}
		changed := r.changed
		r.mu.Unlock()
		res := r.perform(ctx, s, a, changed)
		r.mu.Lock()
		if m.epoch != epoch { // another Deployment, or none
			return res.err
		}
		m.done(res, time.Now())
		if res.err != nil {
			s.notBefore = time.Now().Add(r.backoff.When(s.key))
			return res.err
		}
		if m.stage == idle {
			break
		}
	}
	s.notBefore = time.Time{}
	r.backoff.Forget(s.key)
	return nil
}

// perform carries out an action. A wait ends when something changes.
func (r *Runtime) perform(ctx context.Context, s *service, a action, changed <-chan struct{}) (res result) {
	switch a := a.(type) {
	case wait:
		timeout := time.NewTimer(time.Until(a.until))
		defer timeout.Stop()
		select {
		case <-changed:
		case <-timeout.C:
		case <-ctx.Done():
			res.err = ctx.Err()
		}
	case giveUp:
		res.err = fmt.Errorf("service %s: Deployment %s: %w: %s", s.key, s.name, runtime.ErrUnavailable, a.reason)
	case scale:
		res.version, res.err = r.api.scale(ctx, s.ident, a.replicas)
	case setPaused:
		res.err = r.api.setPaused(ctx, s.ident, a.paused, a.version)
	case createPods:
		res.created, res.err = r.createPods(ctx, s, a)
	case deletePods:
		res.err = r.deletePods(ctx, s, a)
	case createSet:
		res.err = r.api.createSet(ctx, s.ident, a.set)
	case deleteSet:
		res.err = r.api.deleteSet(ctx, s.ident, a.set, a.orphan)
	}
	return res
}

// unwritten has drive write the wanted number of pods, unless another call has just done that.
func unwritten(m *machine, _ observation) bool { return m.pending() }

// sequenceDue has drive carry out the sequence that is due, if any.
func sequenceDue(m *machine, o observation) bool {
	what, at := m.due(o)
	return what != noTask && !at.After(o.now)
}

// createPods creates pods, all at once, and returns the UIDs of those that exist, also of those that a request without
// an answer has created.
func (r *Runtime) createPods(ctx context.Context, s *service, a createPods) (uids []string, err error) {
	begin := time.Now()
	created, failed := make([]string, a.n), make([]error, a.n)
	r.mu.Lock()
	pod := r.preferring(s.key, a.pod)
	names := s.directNames(pod, a.known)
	r.mu.Unlock()
	var all sync.WaitGroup
	for i := range a.n {
		all.Go(func() { created[i], failed[i] = r.api.createDirect(ctx, s.ident, pod, names, a.known) })
	}
	all.Wait()
	err = errors.Join(failed...)
	r.log.Debug("pods created", "service", string(s.key), "pods", a.n, "took", time.Since(begin), "error", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uid := range created {
		if uid != "" && !r.gone.has(uid) {
			uids = append(uids, uid)
		}
	}
	return uids, err
}

// directNames returns a function that returns the names for direct pods in their order, without those of pods that are
// known, or about to end. It may be called from several goroutines. The lock is held.
func (s *service) directNames(pod *corev1.Pod, known map[string]bool) func() string {
	taken := map[string]bool{}
	for uid, p := range s.pods {
		if known[uid] || !p.stays() || p.over() {
			taken[p.name] = true
		}
	}
	var mu sync.Mutex
	k := 0
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		for {
			name := directName(pod, k)
			k++
			if !taken[name] {
				return name
			}
		}
	}
}

// deletePods deletes direct pods: the service sleeps again.
func (r *Runtime) deletePods(ctx context.Context, s *service, a deletePods) error {
	names, unseen := map[string]string{}, map[string]bool{}
	r.mu.Lock()
	for _, uid := range a.uids {
		if p := r.byUID[uid]; p != nil && !p.is(podLeaving) {
			names[uid] = p.name
			p.set(podStopping)
		} else {
			unseen[uid] = true
		}
	}
	r.mu.Unlock()
	if len(unseen) > 0 { // created, and not reported yet: their names are not known
		found, err := r.api.podsWithHash(ctx, s.ident, a.hash)
		if err != nil {
			return err
		}
		for _, o := range found {
			if unseen[string(o.UID)] && o.DeletionTimestamp == nil {
				names[string(o.UID)] = o.Name
			}
		}
	}
	for uid, name := range names {
		if err := r.deletePod(ctx, s, name, uid, nil); err != nil {
			return err
		}
	}
	return nil
}

// deletePod deletes a pod with seconds of grace; nil means those in its spec. Zero does not wait for its node.
func (r *Runtime) deletePod(ctx context.Context, s *service, name, uid string, seconds *int64) error {
	gone, err := r.api.deletePod(ctx, s.ident, name, uid, seconds)
	if !gone {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.byUID[uid]; p != nil { // it went before it was known here
		r.removed(p)
	}
	return nil
}

// follow follows the pod of a waiter until its process runs.
func (r *Runtime) follow(
	ctx context.Context, s *service, w *waiter, hooks runtime.StartHooks, timeout time.Duration,
) (runtime.Pod, error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	var explained <-chan time.Time // set once the process has ended before it was reported to run
	for {
		select {
		case e := <-w.steps:
			switch {
			case ctx.Err() != nil:
				return runtime.Pod{}, ctx.Err()
			case e.waits != "":
				if hooks.Waits != nil {
					hooks.Waits(e.waits)
				}
			case e.exited && explained == nil:
				explained = time.After(explanationTimeout)
			case e.exited:
			case e.phase == runtime.PhaseStarted && e.pod.Started != 0:
				callHooks(hooks, e)
				return e.pod, ctx.Err()
			default:
				callHooks(hooks, e)
			}
		case err := <-w.err:
			return runtime.Pod{}, fmt.Errorf("service %s: %w", s.key, err)
		case <-explained:
			return r.endedEarly(w), nil
		case <-deadline.C:
			r.mu.Lock()
			heldUp := w.heldUp
			r.mu.Unlock()
			if heldUp != "" {
				return runtime.Pod{}, fmt.Errorf("service %s: waited %s: %s", s.key, timeout, heldUp)
			}
			// No problem is known: the caller ends the wait. A reason may still come.
			deadline.Reset(time.Hour)
		case <-ctx.Done():
			return runtime.Pod{}, ctx.Err()
		}
	}
}

// callHooks reports a step to the caller of Start.
func callHooks(hooks runtime.StartHooks, e step) {
	if e.phase == runtime.PhaseSandbox && hooks.Network != nil {
		hooks.Network(e.pod)
	}
	if hooks.Phase != nil {
		hooks.Phase(e.phase, e.at)
	}
}

// endedEarly returns a pod whose process ended before it was reported to run and for which the API has no error: it
// ran for a very short time.
func (r *Runtime) endedEarly(w *waiter) runtime.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := w.pod.rt
	if rt.Started == 0 {
		rt.Started = monotime.Now()
	}
	return rt
}

// dropWaiter forgets a Start that waits for a pod. The lock is held.
func (r *Runtime) dropWaiter(s *service, w *waiter) {
	s.waiters = slices.DeleteFunc(s.waiters, func(o *waiter) bool { return o == w })
}

// abandon undoes the demand of a Start. The lock is held.
func (r *Runtime) abandon(s *service, w *waiter) {
	p, reduced := w.pod, false
	if p == nil || !p.is(podLeaving|podFailed) { // else the pod that replaces it is for the next Start
		reduced = s.wantLess()
	}
	r.dropWaiter(s, w)
	if p == nil {
		// The pod that was created for it has no network yet: its ReplicaSet deletes such a one first.
		r.reportTrouble(s, trouble{})
		r.schedule(s)
		r.dropService(s)
		return
	}
	p.waiter = nil
	p.set(podStopping)
	if len(s.waiters) == 0 {
		r.reportTrouble(s, trouble{})
	}
	if p.is(podLeaving) || r.retired {
		r.schedule(s)
		return
	}
	if reduced {
		s.machine.excess++ // until remove has marked the pod
	}
	r.workers.Go(func() {
		if err := r.remove(r.ctx, p, p.grace, reduced); err != nil {
			r.log.Warn(err.Error(), "service", string(s.key))
		}
	})
	r.schedule(s)
}
