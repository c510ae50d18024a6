// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"

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
func (c *Controller) Update(put []Service, remove []runtime.Key) error {
	c.catalog.mu.Lock()
	defer c.catalog.mu.Unlock()
	return c.update(put, remove)
}

// update is Update while the catalog is locked.
func (c *Controller) update(put []Service, remove []runtime.Key) error {
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

// Restrict changes Service.Policy of a service. Daemons are being informed when it returns. It does nothing if the
// service does not exist.
func (c *Controller) Restrict(key runtime.Key, policy *sources.Set) error {
	c.catalog.mu.Lock()
	defer c.catalog.mu.Unlock()
	w := c.catalog.wanted[key]
	if w == nil {
		return nil
	}
	return c.update([]Service{{Spec: w.spec, Addr: w.addr.Addr(), Announce: w.announce, Policy: policy,
		Digests: w.digests, History: w.history}}, nil)
}

// Delete removes a service with its pods. It returns at once; the pods end with their grace. It does nothing if the
// service does not exist.
func (c *Controller) Delete(key runtime.Key) error { return c.Update(nil, []runtime.Key{key}) }

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

// Scale gives a service n pods, within its limits: 0 puts it to sleep now, whatever its clients do; more than 0 wakes
// it, or changes the number of serving pods. It returns at once. An error means that nothing was changed, and that it
// may be tried again: a service that was deleted and put again does not begin before its old pods are gone. why is a
// reason in a few words, for users.
func (c *Controller) Scale(key runtime.Key, n int, why string) error {
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
func (c *Controller) Sleep(ctx context.Context, key runtime.Key) error {
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
func (e *engine) living(key runtime.Key) (*service, error) {
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
