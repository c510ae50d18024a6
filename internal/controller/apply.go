// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// maxServices is how many services the wire's table holds.
const maxServices = 100_000

// orphanGrace is how long a pod of which nobody knows the service has between SIGTERM and SIGKILL.
const orphanGrace = 10 * time.Second

// changes is what an Apply changes.
type changes struct {
	first    bool
	adds     []*wanted
	changed  []*wanted
	removed  []runtime.Key
	found    []runtime.Pod // first: what ran before
	prepares []*wanted     // whose image may have to be fetched
}

// Apply makes the services what the given ones are: those that are new are added, those that are not
// in the list are removed with their pods. They must have been validated; they are copied. On an error
// nothing is changed. The first Apply also adopts the pods that run and fit, and stops all others.
//
// It returns when daemons are being told; images are fetched and pods replaced afterwards.
func (c *Controller) Apply(ctx context.Context, services []*v1alpha1.WangellService) error {
	c.applyMu.Lock()
	defer c.applyMu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if len(services) > maxServices {
		return fmt.Errorf("%d services: at most %d fit into the table of a daemon", len(services), maxServices)
	}
	seen := make(map[runtime.Key]bool, len(services))
	for _, s := range services {
		if k := runtime.KeyOf(s); seen[k] {
			return fmt.Errorf("service %s: given twice: remove one", k)
		} else {
			seen[k] = true
		}
	}
	book, err := c.book.assign(services)
	if err != nil {
		return err
	}
	ch := changes{first: !c.adopted}
	if ch.first {
		if ch.found, err = c.cfg.Runtime.List(ctx); err != nil {
			return fmt.Errorf("look for pods that run: %w", err)
		}
	}
	if !book.equal(c.book) {
		if err := book.save(c.cfg.StateDir); err != nil {
			return err
		}
	}
	next := c.plan(services, seen, book, &ch)
	if !c.call(func() { c.change(ch) }) {
		return ErrClosed
	}
	c.applied, c.book, c.adopted = next, book, true
	c.ready.Store(true)
	for _, w := range ch.prepares {
		c.images.add(w)
	}
	return nil
}

// plan compares what is wanted with what was applied before.
func (c *Controller) plan(services []*v1alpha1.WangellService, seen map[runtime.Key]bool, book addressBook, ch *changes) map[runtime.Key]*wanted {
	next := make(map[runtime.Key]*wanted, len(services))
	for _, s := range services {
		k := runtime.KeyOf(s)
		next[k] = ch.want(c.applied[k], Service{Spec: s, Addr: book.given[k], Announce: true})
	}
	for k := range c.applied {
		if !seen[k] {
			ch.removed = append(ch.removed, k)
		}
	}
	slices.Sort(ch.removed)
	return next
}

// want adds a service to the changes, if it is another than before. old is nil if there was none.
func (ch *changes) want(old *wanted, s Service) *wanted {
	addr := netip.AddrPortFrom(s.Addr, uint16(s.Spec.Spec.Port))
	if old != nil && old.addr == addr && old.announce == s.Announce && equality.Semantic.DeepEqual(old.spec.Spec, s.Spec.Spec) {
		return old
	}
	spec := s.Spec.DeepCopy()
	v1alpha1.Default(spec)
	w := &wanted{key: runtime.KeyOf(spec), spec: spec, hash: v1alpha1.Hash(&spec.Spec), addr: addr, announce: s.Announce}
	if old == nil {
		ch.adds = append(ch.adds, w)
	} else {
		ch.changed = append(ch.changed, w)
	}
	if old == nil || old.hash != w.hash || old.spec.Spec.ImagePullPolicy != spec.Spec.ImagePullPolicy {
		ch.prepares = append(ch.prepares, w)
	} else {
		w.prepared.Store(old.prepared.Load())
	}
	return w
}

// change carries an Apply out, on the loop.
func (c *Controller) change(ch changes) {
	if ch.first {
		c.synced = true
		c.watchAlone()
	}
	// Addresses that services leave come first: others may come to them.
	vacated := map[netip.AddrPort]bool{}
	for _, w := range ch.changed {
		if s := c.services[w.key]; s.addr != w.addr && !s.machine.Deleted() {
			c.broadcast(&wire.Refuse{Service: s.addr, Reason: "the service has another address now: " + w.addr.String()})
			delete(c.byAddr, s.addr)
			vacated[s.addr] = true
		}
	}
	var upserts []wire.Service
	var after []func() // steps of machines, once the table is changed
	var begun []*service
	for _, w := range ch.adds {
		if s := c.services[w.key]; s != nil { // it is just being removed
			s.again = w
			continue
		}
		s, taken := c.add(w)
		begun = append(begun, s)
		upserts = append(upserts, w.entry())
		if taken || vacated[w.addr] {
			after = append(after, func() { c.step(s, lifecycle.Rejoined{}) })
		}
	}
	for _, w := range ch.changed {
		s := c.services[w.key]
		if s.machine.Deleted() {
			s.again = w
			continue
		}
		upserts = append(upserts, w.entry())
		old := s.wanted
		s.wanted = w
		s.imageErr = ""
		if old.addr != w.addr {
			c.evict(w.addr)
			c.byAddr[w.addr] = s
		}
		after = append(after, func() {
			c.step(s, lifecycle.SpecChanged{Spec: w.wakeSpec(c.cluster != nil), Restart: old.hash != w.hash})
			if old.addr != w.addr {
				s.machine.SkipGenerations(c.newGeneration())
				c.step(s, lifecycle.Rejoined{})
			}
		})
	}
	for _, k := range ch.removed {
		s := c.services[k]
		switch {
		case s == nil:
		case s.machine.Deleted():
			s.again = nil
		default:
			after = append(after, func() { c.step(s, lifecycle.Deleted{}) })
		}
	}
	var removals []netip.AddrPort
	for a := range vacated {
		if c.byAddr[a] == nil {
			removals = append(removals, a)
		}
	}
	if ch.first {
		if err := c.server.SetServices(upserts); err != nil {
			c.report("", SeverityError, fmt.Sprintf("the daemons' table of services cannot be set: %v", err))
		}
	} else {
		c.update(upserts, removals)
	}
	for _, f := range after {
		f()
	}
	c.adopt(ch.found)
	if ch.first {
		c.adoptEarly()
	}
	if ch.first || c.cluster == nil {
		for _, s := range begun {
			c.begin(s)
		}
	} // else lookFor does
}

// begin starts the pods that a service has even while nobody uses it, as far as it has not found them.
func (c *Controller) begin(s *service) { c.step(s, lifecycle.Timer{}) }

// adopt takes over pods that run: of each service those that have its spec, the newest first, as many as it may have.
// All others are stopped. The pods of a cluster are its own: all those of services are taken, and none is stopped.
func (c *Controller) adopt(found []runtime.Pod) {
	slices.SortFunc(found, func(a, b runtime.Pod) int { return cmp.Compare(b.Started, a.Started) })
	for _, rt := range found {
		s := c.services[rt.Service]
		if c.cluster != nil {
			c.appeared(rt)
			continue
		}
		if s != nil && s.hash == rt.SpecHash && rt.Started != 0 && rt.Addr.IsValid() && len(s.pods) < int(s.spec.Spec.MaxReplicas) {
			c.take(s, rt, func(r lifecycle.Ref) lifecycle.Event { return lifecycle.Adopted{Ref: r} })
			continue
		}
		why, grace := "no service has its spec", orphanGrace
		switch {
		case s == nil:
			why = "there is no such service"
		case rt.Started == 0:
			why, grace = "its process does not run", 0
		case s.hash == rt.SpecHash:
			why, grace = "the service has a newer one", s.grace()
		default:
			grace = s.grace()
		}
		c.report(rt.Service, SeverityInfo, fmt.Sprintf("pod %s was found and is stopped: %s", rt.ID, why))
		c.stopOrphan(rt, grace)
	}
}

// take makes a pod that the machine did not ask for one of a service's.
func (c *Controller) take(s *service, rt runtime.Pod, event func(lifecycle.Ref) lifecycle.Event) {
	p := &pod{service: s, ref: s.machine.NextRef(), port: uint16(s.spec.Spec.TargetPort), returned: true, cancel: func() {}}
	s.pods = append(s.pods, p)
	c.register(p, rt)
	c.step(s, event(p.ref))
	if !slices.Contains(s.machine.Pods(), p.ref) {
		c.drop(p) // there are too many
	}
}
