// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/runtime"
)

// ErrNotSynced is returned while the services are not known, because Synced was not called yet.
var ErrNotSynced = errors.New("controller: services are not known yet")

// Update adds or changes services and removes others, in one step: services may exchange their addresses. Services that
// are neither in put nor in remove stay. On an error nothing is changed.
//
// It returns once daemons are being informed; images are fetched and pods replaced afterwards.
func (c *Controller) Update(put []Service, remove []v1alpha1.Key) error {
	c.catalog.mu.Lock()
	defer c.catalog.mu.Unlock()
	return c.update(put, remove)
}

// update is Update while the catalog is locked.
func (c *Controller) update(put []Service, remove []v1alpha1.Key) error {
	if c.catalog.closed {
		return ErrClosed
	}
	ch, err := c.catalog.plan(put, remove)
	if err != nil {
		return err
	}
	if len(ch.added)+len(ch.changed)+len(ch.removed) == 0 {
		return nil
	}
	if c.catalog.synced && !c.carryOut(ch) {
		return ErrClosed
	}
	c.catalog.commit(ch)
	return nil
}

// carryOut carries out changes. It returns false if the controller has ended.
func (c *Controller) carryOut(ch changes) bool {
	if !c.loop.call(func() { update(c.engine, c.adopter, ch) }) {
		return false
	}
	for _, w := range ch.prepare {
		c.engine.preparer.add(w)
	}
	if c.engine.cluster != nil && !ch.first {
		for _, w := range ch.added {
			c.workers.group.Go(func() { c.adopter.lookFor(w.key) })
		}
	}
	return true
}

// Put adds a service, or changes the existing one of its name. It is Update for one service.
func (c *Controller) Put(s Service) error { return c.Update([]Service{s}, nil) }

// Restrict changes Service.Policy and Service.PortPolicies of a service. Daemons are being informed when it returns. It
// does nothing if the service does not exist.
func (c *Controller) Restrict(key v1alpha1.Key, policy *sources.Set, ports ...sources.Set) error {
	c.catalog.mu.Lock()
	defer c.catalog.mu.Unlock()
	w := c.catalog.wanted[key]
	if w == nil {
		return nil
	}
	return c.update([]Service{{Spec: w.spec, Addr: w.addr.Addr(), Announce: w.announce, Policy: policy,
		PortPolicies: ports, Digests: w.digests, History: w.history}}, nil)
}

// Delete removes a service with its pods. It returns at once; the pods end with their grace. It does nothing if the
// service does not exist.
func (c *Controller) Delete(key v1alpha1.Key) error { return c.Update(nil, []v1alpha1.Key{key}) }

// Synced declares the set of services complete: daemons get the table of services, and running pods are adopted if
// they fit and stopped otherwise. Until then, daemons that ask for a wake wait. Later calls do nothing.
func (c *Controller) Synced(ctx context.Context) error {
	c.catalog.mu.Lock()
	defer c.catalog.mu.Unlock()
	switch {
	case c.catalog.closed:
		return ErrClosed
	case c.catalog.synced:
		return nil
	}
	found, err := c.runtime.List(ctx)
	if err != nil {
		return fmt.Errorf("look for running pods: %w", err)
	}
	all := c.catalog.all()
	if !c.carryOut(changes{first: true, added: all, prepare: all, found: found}) {
		return ErrClosed
	}
	c.catalog.synced = true
	return nil
}

// Recall tells the controller what the API server has of a service's status: its conditions, which Status then has as
// well, and from the time of an earlier controller its last packet and its last wake, in place of which later ones
// count. It does nothing if the service does not exist.
func (c *Controller) Recall(key v1alpha1.Key, st v1alpha1.WangellServiceStatus) {
	c.loop.call(func() {
		if s := c.engine.table.services[key]; s != nil {
			s.recalled = v1alpha1.WangellServiceStatus{Conditions: st.Conditions, LatestRequest: st.LatestRequest}
			c.engine.wakes.recall(s, st.LastWake)
		}
	})
}

// Scale gives a service n pods, within its limits: 0 puts it to sleep now, whatever its clients do; more than 0 wakes
// it, or changes the number of serving pods. It returns at once. An error means that nothing was changed, and that it
// may be tried again: a service that was deleted and put again does not begin before its old pods are gone. why is a
// reason in a few words, for users.
func (c *Controller) Scale(key v1alpha1.Key, n int, why string) error {
	if n < 0 {
		return fmt.Errorf("service %s: %d replicas: the minimum is 0", key, n)
	}
	var err error
	if !c.loop.call(func() {
		var s *service
		if s, err = c.engine.living(key); err == nil {
			if n == 0 {
				c.engine.planner.dismiss(s)
			}
			c.engine.step(s, lifecycle.Scale{N: n, Why: why})
		}
	}) {
		return ErrClosed
	}
	return err
}

// Sleep puts a service to sleep and waits until nothing is left of the pods that it had. A client that comes meanwhile
// wakes it again right after.
func (c *Controller) Sleep(ctx context.Context, key v1alpha1.Key) error {
	var w *sleeper
	var err error
	if !c.loop.call(func() {
		s := c.engine.table.services[key]
		if s == nil {
			err = fmt.Errorf("service %s: %w", key, runtime.ErrNotFound)
			return
		}
		if err = s.hasPods(); err != nil {
			return
		}
		w = s.awaitPods()
		c.engine.planner.dismiss(s)
		c.engine.step(s, lifecycle.SleepAsked{})
	}) {
		return ErrClosed
	}
	if err != nil || w == nil {
		return err
	}
	select {
	case <-w.done:
		return nil
	case <-c.loop.done:
		return ErrClosed
	case <-ctx.Done():
		c.loop.call(func() {
			if s := c.engine.table.services[key]; s != nil {
				s.removeSleeper(w)
			}
		})
		return fmt.Errorf("service %s: not asleep yet: %w", key, ctx.Err())
	}
}

// living returns a service whose pods can be acted on. It belongs to the loop.
func (e *engine) living(key v1alpha1.Key) (*service, error) {
	s := e.table.services[key]
	switch {
	case !e.synced:
		return nil, ErrNotSynced
	case s == nil:
		return nil, fmt.Errorf("service %s: %w", key, runtime.ErrNotFound)
	case s.machine.Deleted():
		return nil, fmt.Errorf("service %s: the previous one of this name is still being removed", key)
	}
	return s, s.hasPods()
}

// ask delivers an event to a service's machine, and waits until ready. event is called once, on the loop; it may
// return nil. An error from ready or ctx undoes nothing.
func (c *Controller) ask(ctx context.Context, key v1alpha1.Key, event func(*service) lifecycle.Event,
	ready func(*service) (bool, error)) error {
	w := &waiter{ready, make(chan error, 1)}
	var err error
	if !c.loop.call(func() {
		var s *service
		if s, err = c.engine.living(key); err != nil {
			return
		}
		ev := event(s)
		s.waiters = append(s.waiters, w)
		if ev != nil {
			c.engine.step(s, ev)
		}
		s.checkWaiters()
	}) {
		return ErrClosed
	}
	if err != nil {
		return err
	}
	select {
	case err := <-w.done:
		return err
	case <-c.loop.done:
		return ErrClosed
	case <-ctx.Done():
		c.loop.call(func() {
			if s := c.engine.table.services[key]; s != nil {
				s.waiters = slices.DeleteFunc(s.waiters, func(o *waiter) bool { return o == w })
			}
		})
		return fmt.Errorf("service %s: not there yet: %w", key, ctx.Err())
	}
}

// Wake wakes a service, and returns once it serves. Its idle timeout begins then, as if a client had come. A service
// that failed is tried again at once. If its wake fails, or a user puts it to sleep meanwhile, the error says so.
func (c *Controller) Wake(ctx context.Context, key v1alpha1.Key) error {
	return c.ask(ctx, key, func(s *service) lifecycle.Event {
		if s.machine.Serving() > 0 && (s.machine.State() == lifecycle.Warm || s.machine.State() == lifecycle.Frozen) {
			return lifecycle.ThawAsked{}
		}
		return lifecycle.Scale{N: max(s.machine.Desired(), 1), Why: "asked for by a user"}
	}, func(s *service) (bool, error) {
		switch s.machine.State() {
		case lifecycle.Failed:
			return false, fmt.Errorf("service %s: %s", s.key, s.machine.Message())
		case lifecycle.Cold:
			return false, fmt.Errorf("service %s was put to sleep, or its pod ended, before it served: "+
				"see 'wangell why'", s.key)
		}
		return s.machine.State() == lifecycle.Warm && s.machine.Serving() > 0, nil
	})
}

// Hold wakes a service, and keeps it awake while it is idle until release is called. Other reasons to end its pods
// remain. release may be called several times.
func (c *Controller) Hold(ctx context.Context, key v1alpha1.Key) (release func(), err error) {
	add := func(n int) bool {
		return c.loop.call(func() {
			if c.engine.held[key] += n; c.engine.held[key] <= 0 {
				delete(c.engine.held, key)
			}
		})
	}
	if !add(1) {
		return nil, ErrClosed
	}
	release = sync.OnceFunc(func() { add(-1) })
	if err := c.Wake(ctx, key); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// Restart replaces the pods of a service, one at a time: each new pod serves before an old one is drained, unless its
// updateStrategy is Recreate, whose clients wait meanwhile. It returns the number of replaced pods once none of them
// gets new connections and the new ones serve; the old ones end with their connections. For a service without pods it
// is 0. If a new pod fails, the old ones continue to serve, and the error has the reason. In a cluster, the pods belong
// to a Deployment, which restarts them.
func (c *Controller) Restart(ctx context.Context, key v1alpha1.Key) (replaced int, err error) {
	if c.engine.cluster != nil {
		return 0, errors.New("in a cluster, kubectl rollout restart does this")
	}
	var old []lifecycle.Ref
	err = c.ask(ctx, key, func(s *service) lifecycle.Event {
		for _, r := range s.machine.Pods() {
			if s.machine.PodState(r) <= lifecycle.PodServing {
				old = append(old, r)
			}
		}
		if len(old) == 0 {
			return nil
		}
		return lifecycle.RestartAsked{}
	}, func(s *service) (bool, error) {
		switch {
		case len(old) == 0:
			return true, nil
		case s.machine.State() == lifecycle.Failed, s.machine.UpdateFailed():
			return false, fmt.Errorf("service %s: %s", s.key, s.machine.Message())
		case slices.ContainsFunc(old, func(r lifecycle.Ref) bool { return s.machine.PodState(r) <= lifecycle.PodServing }):
			return false, nil
		}
		return s.machine.Serving() >= s.machine.Desired(), nil
	})
	return len(old), err
}

// awaitPods returns a sleeper that waits for the end of the present pods; nil if there are none.
func (s *service) awaitPods() *sleeper {
	if len(s.pods) == 0 {
		return nil
	}
	w := &sleeper{refs: map[lifecycle.Ref]bool{}, done: make(chan struct{})}
	for _, p := range s.pods {
		w.refs[p.ref] = true
	}
	s.sleepers = append(s.sleepers, w)
	return w
}

func (s *service) removeSleeper(w *sleeper) {
	s.sleepers = slices.DeleteFunc(s.sleepers, func(o *sleeper) bool { return o == w })
}

// checkWaiters releases the waiters whose condition holds.
func (s *service) checkWaiters() {
	s.waiters = slices.DeleteFunc(s.waiters, func(w *waiter) bool {
		ready, err := w.ready(s)
		if s.machine.Deleted() {
			ready, err = false, fmt.Errorf("service %s: removed meanwhile", s.key)
		}
		if ready || err != nil {
			w.done <- err
			return true
		}
		return false
	})
}
