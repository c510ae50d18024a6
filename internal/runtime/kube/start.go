// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// explanationTimeout is how long the API may take to explain why a process ended before it was reported to run.
const explanationTimeout = 2 * time.Second

// startReplica is Start for a service whose pods belong to its Deployment: it adds a replica, and takes the next pod
// that appears. If it fails, it removes the replica again.
func (r *Runtime) startReplica(
	ctx context.Context, service *v1alpha1.WangellService, hooks runtime.StartHooks,
) (runtime.Pod, error) {
	key := v1alpha1.KeyOf(service)
	w := newWaiter()
	r.mu.Lock()
	if r.retired {
		r.mu.Unlock()
		return runtime.Pod{}, fmt.Errorf("service %s: %w: closed", key, runtime.ErrUnavailable)
	}
	s := r.ensureService(key)
	s.wantMore()
	s.waiters = append(s.waiters, w)
	r.mu.Unlock()

	rt, err := r.await(ctx, s, w, hooks, startTimeout(service))
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		w.pod.waiter = nil
		r.deliverKeptExit(w.pod)
		r.schedule(s)
		return rt, nil
	}
	r.abandon(s, w)
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

// await writes the number of replicas, and follows the pod.
func (r *Runtime) await(
	ctx context.Context, s *service, w *waiter, hooks runtime.StartHooks, timeout time.Duration,
) (runtime.Pod, error) {
	if err := r.write(ctx, s); err != nil {
		return runtime.Pod{}, err
	}
	return r.follow(ctx, s, w, hooks, timeout)
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
