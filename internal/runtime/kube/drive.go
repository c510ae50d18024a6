// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"wangell.loutres.me/internal/runtime"
)

// write writes the wanted number of pods to the API server, unless another call has just done that.
func (r *Runtime) write(ctx context.Context, s *service) error {
	return r.drive(ctx, s, func(m *machine, _ observation) bool { return m.pending() })
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
	if !begin(m, s.observe(time.Now())) {
		return nil
	}
	for epoch := m.epoch; ; {
		a := m.next(s.observe(time.Now()))
		if m.stage == idle {
			break
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

// createPods creates pods, all at once, and returns the UIDs of those that exist.
func (r *Runtime) createPods(ctx context.Context, s *service, a createPods) (uids []string, err error) {
	begin := time.Now()
	created, failed := make([]string, a.n), make([]error, a.n)
	r.mu.Lock()
	pod := r.preferring(s.key, a.pod)
	r.mu.Unlock()
	var all sync.WaitGroup
	for i := range a.n {
		all.Go(func() { created[i], failed[i] = r.api.createPod(ctx, s.ident, pod) })
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

// deletePod deletes a pod with seconds of grace; nil for those of its spec. Zero does not wait for its node.
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
