// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// start is a Start under way.
type start struct {
	pod   *pod // nil while it waits for one
	held  string
	steps chan step
	err   chan error
}

// step is what happens to the pod of a Start.
type step struct {
	phase  runtime.Phase
	at     monotime.Time
	pod    runtime.Pod
	exited bool // its process ended
}

// tell never waits: there are not more kinds of steps than the channel holds, and repeats may be lost.
func (st *start) tell(s step) {
	select {
	case st.steps <- s:
	default:
	}
}

func (st *start) fail(err error) {
	select {
	case st.err <- err:
	default:
	}
}

// explanationTimeout is how long a process that ended before it was seen to run may wait for the API's word on why.
const explanationTimeout = 2 * time.Second

// Start implements runtime.Runtime: the Deployment wants one more, and the next pod that appears is it. The phases that
// it tells are PhaseSandbox, PhaseCreated and PhaseStarted; that of the image is not seen from outside.
//
// A pod for which there is no room is waited for until shortly before the service's wakeTimeout, so that the reason is
// told in time. When Start fails, the Deployment wants one less; the remains of the pod go by themselves.
func (r *Runtime) Start(ctx context.Context, service *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod, error) {
	key := runtime.KeyOf(service)
	st := &start{steps: make(chan step, 16), err: make(chan error, 1)}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return runtime.Pod{}, fmt.Errorf("service %s: %w: closed", key, runtime.ErrUnavailable)
	}
	s := r.of(key, service.Namespace, service.Name)
	s.wantMore()
	s.starts = append(s.starts, st)
	r.mu.Unlock()

	rt, err := r.await(ctx, s, st, hooks, wakeTimeout(service))
	r.mu.Lock()
	if err == nil {
		st.pod.start = nil
		r.given(st.pod)
		r.tidy(s)
		r.mu.Unlock()
		return rt, nil
	}
	r.abandon(s, st)
	r.mu.Unlock()
	r.settle(s)
	if errors.Is(err, context.Canceled) {
		return runtime.Pod{}, fmt.Errorf("service %s: start: %w", key, err)
	}
	return runtime.Pod{}, err
}

// wakeTimeout is how long to wait for a pod: a tenth, or a second, is left for telling that none came.
func wakeTimeout(s *v1alpha1.WangellService) time.Duration {
	t := time.Duration(s.Spec.WakeTimeout) * time.Second
	if t == 0 {
		t = v1alpha1.DefaultWakeTimeout * time.Second
	}
	return t - min(t/10, time.Second)
}

// await has the Deployment want one more, and follows the pod until its process runs.
func (r *Runtime) await(ctx context.Context, s *service, st *start, hooks runtime.StartHooks, timeout time.Duration) (runtime.Pod, error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	if err := r.write(ctx, s); err != nil {
		return runtime.Pod{}, err
	}
	var explain <-chan time.Time // set once the process has ended before it was seen to run
	for {
		select {
		case e := <-st.steps:
			switch {
			case ctx.Err() != nil:
				return runtime.Pod{}, ctx.Err()
			case e.exited && explain == nil:
				explain = time.After(explanationTimeout)
			case e.exited:
			case e.phase == runtime.PhaseStarted && e.pod.Started != 0:
				phase(hooks, e)
				return e.pod, ctx.Err()
			default:
				phase(hooks, e)
			}
		case err := <-st.err:
			return runtime.Pod{}, fmt.Errorf("service %s: %w", s.key, err)
		case <-explain:
			return r.endedEarly(st), nil
		case <-deadline.C:
			r.mu.Lock()
			held := st.held
			r.mu.Unlock()
			if held == "" {
				deadline.Reset(time.Hour) // the one who waits knows best how long
				continue
			}
			return runtime.Pod{}, fmt.Errorf("service %s: waited %s: %s", s.key, timeout, held)
		case <-ctx.Done():
			return runtime.Pod{}, ctx.Err()
		}
	}
}

// phase calls the hooks for a step.
func phase(hooks runtime.StartHooks, e step) {
	if e.phase == runtime.PhaseSandbox && hooks.Network != nil {
		hooks.Network(e.pod)
	}
	if hooks.Phase != nil {
		hooks.Phase(e.phase, e.at)
	}
}

// endedEarly is for a process that ended before anybody saw it run, and of which the API has nothing bad to say: it ran
// for a very short time.
func (r *Runtime) endedEarly(st *start) runtime.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := st.pod.rt
	if rt.Started == 0 {
		rt.Started = monotime.Now()
	}
	return rt
}

// abandon undoes what a Start asked for. The lock is held.
func (r *Runtime) abandon(s *service, st *start) {
	p, reduced := st.pod, false
	if p == nil || !p.leaving && !p.failed { // else the pod that replaces it is for the next Start
		reduced = s.wantLess()
	}
	s.starts = slices.DeleteFunc(s.starts, func(o *start) bool { return o == st })
	if p == nil {
		// The pod that was made for it has no network yet: it is the one that the ReplicaSet takes away first.
		r.trouble(s, trouble{})
		r.dropService(s)
		return
	}
	p.start, p.stopping = nil, true
	if len(s.starts) == 0 {
		r.trouble(s, trouble{})
	}
	if !p.leaving && !r.closed {
		if reduced {
			s.unmarked++
		}
		r.workers.Go(func() {
			if err := r.remove(r.ctx, s, p, p.grace, reduced); err != nil {
				r.log.Warn(err.Error(), "service", string(s.key))
			}
		})
	}
}
