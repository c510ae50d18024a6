// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

// Service is a service with an address that somebody else has given it.
type Service struct {
	// Spec is the manifest, validated. Put copies it.
	Spec *v1alpha1.WangellService
	// Addr is the service address without its port (IPv4). No two services have the same Addr and port.
	Addr netip.Addr
	// Announce: one of the nodes answers ARP for Addr. Without it, somebody else brings packets to the nodes.
	Announce bool
}

// ErrNotSynced: Synced was not called yet.
var ErrNotSynced = errors.New("controller: services are not known yet")

// Put adds a service, or makes it what is given: whoever knows services one by one uses Put and Delete instead of
// Apply. It changes nothing if all is as before. On an error nothing is changed.
func (c *Controller) Put(s Service) error {
	c.applyMu.Lock()
	defer c.applyMu.Unlock()
	if c.closed {
		return ErrClosed
	}
	key := runtime.KeyOf(s.Spec)
	if !s.Addr.Is4() {
		return fmt.Errorf("service %s: address %v is not IPv4", key, s.Addr)
	}
	spec := s.Spec.DeepCopy()
	v1alpha1.Default(spec)
	s.Spec = spec
	addr := netip.AddrPortFrom(s.Addr, uint16(spec.Spec.Port))
	if other, taken := c.holders[addr]; taken && other != key {
		return fmt.Errorf("service %s: service address %v is that of service %s already: choose another address or port", key, addr, other)
	}
	old := c.applied[key]
	if old == nil && len(c.applied) >= maxServices {
		return fmt.Errorf("service %s: there are %d services already: no more fit into the table of a daemon", key, maxServices)
	}
	var ch changes
	w := ch.want(old, s)
	if w == old {
		return nil
	}
	if c.adopted {
		if !c.call(func() { c.change(ch) }) {
			return ErrClosed
		}
		for _, w := range ch.prepares {
			c.images.add(w)
		}
		if c.cluster != nil && old == nil {
			c.workers.Go(func() { c.lookFor(key) })
		}
	}
	if old != nil {
		delete(c.holders, old.addr)
	}
	c.applied[key], c.holders[addr] = w, key
	return nil
}

// lookFor takes the pods of a service that is new, but has pods already, and then has it begin. What cannot be listed now
// is told by the cluster when it goes.
func (c *Controller) lookFor(key runtime.Key) {
	defer c.post(func() {
		if s := c.services[key]; s != nil {
			c.begin(s)
		}
	})
	pods, err := c.cluster.List(c.ctx)
	if err != nil {
		if c.ctx.Err() == nil {
			c.report(key, SeverityWarning, "it is not known whether it has pods already: "+bare(key, err))
		}
		return
	}
	for _, rt := range pods {
		if rt.Service == key {
			c.post(func() { c.appeared(rt) })
		}
	}
}

// Delete removes a service with its pods: it returns at once, and the pods end with their grace. A service that is
// none is no error.
func (c *Controller) Delete(key runtime.Key) error {
	c.applyMu.Lock()
	defer c.applyMu.Unlock()
	if c.closed {
		return ErrClosed
	}
	old := c.applied[key]
	if old == nil {
		return nil
	}
	if c.adopted && !c.call(func() { c.change(changes{removed: []runtime.Key{key}}) }) {
		return ErrClosed
	}
	delete(c.applied, key)
	delete(c.holders, old.addr)
	return nil
}

// Synced tells that every service that there is was Put: now daemons are given the table of services, and pods that
// were found are adopted. Until then daemons that ask for a wake wait. Later calls do nothing.
func (c *Controller) Synced(ctx context.Context) error {
	c.applyMu.Lock()
	defer c.applyMu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case c.adopted:
		return nil
	}
	ch := changes{first: true}
	var err error
	if ch.found, err = c.cfg.Runtime.List(ctx); err != nil {
		return fmt.Errorf("look for pods that run: %w", err)
	}
	for _, w := range c.applied {
		ch.adds = append(ch.adds, w)
	}
	slices.SortFunc(ch.adds, func(a, b *wanted) int { return compareKeys(a.key, b.key) })
	if !c.call(func() { c.change(ch) }) {
		return ErrClosed
	}
	c.adopted = true
	c.ready.Store(true)
	for _, w := range ch.adds {
		c.images.add(w)
	}
	return nil
}

// Scale makes a service have n pods, as far as its limits allow: 0 puts it to sleep now, whatever its clients do; more
// than 0 wakes it, or changes how many serve. It returns at once; an error means that nothing was changed, and it may be tried
// again: a service that was deleted and Put again does not begin before its old pods are gone. why tells users the reason, in a few words.
func (c *Controller) Scale(key runtime.Key, n int, why string) error {
	if n < 0 {
		return fmt.Errorf("service %s: %d replicas: 0 is the least", key, n)
	}
	var err error
	if !c.call(func() {
		s := c.services[key]
		switch {
		case !c.synced:
			err = ErrNotSynced
		case s == nil:
			err = fmt.Errorf("service %s: %w", key, runtime.ErrNotFound)
		case s.machine.Deleted():
			err = fmt.Errorf("service %s: the one of this name before it is still being removed", key)
		default:
			c.step(s, lifecycle.Scale{N: n, Why: why})
		}
	}) {
		return ErrClosed
	}
	return err
}
