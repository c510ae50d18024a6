// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// defaultMaxServices is how many services the gates have room for by default.
const defaultMaxServices = 16384

// changes are the differences between two sets of wanted services.
type changes struct {
	first   bool // before, there were no services
	added   []*wanted
	changed []*wanted
	removed []v1alpha1.Key
	prepare []*wanted     // whose images may have to be fetched
	found   []runtime.Pod // if first: the pods that ran before
}

// catalog is the set of wanted services.
type catalog struct {
	mu      sync.Mutex // also makes updates take turns
	wanted  map[v1alpha1.Key]*wanted
	holders map[netip.AddrPort]v1alpha1.Key
	// splitting are the services with spec.traffic.
	splitting map[v1alpha1.Key]bool
	most      int // services that the gates have room for
	synced    bool
	closed    bool
}

func newCatalog(most int) *catalog {
	return &catalog{wanted: map[v1alpha1.Key]*wanted{}, holders: map[netip.AddrPort]v1alpha1.Key{},
		splitting: map[v1alpha1.Key]bool{}, most: most}
}

// plan returns the changes that put some services and remove others. An error names the service that is not possible.
func (c *catalog) plan(put []Service, remove []v1alpha1.Key) (ch changes, err error) {
	gone := make(map[v1alpha1.Key]bool, len(remove))
	for _, k := range remove {
		if c.wanted[k] != nil && !gone[k] {
			gone[k] = true
			ch.removed = append(ch.removed, k)
		}
	}
	next := make(map[v1alpha1.Key]*wanted, len(put))
	for _, s := range put {
		w := newWanted(s)
		if !s.Addr.Is4() {
			return ch, fmt.Errorf("service %s: address %v is not IPv4", w.key, s.Addr)
		}
		if next[w.key] != nil || gone[w.key] {
			return ch, fmt.Errorf("service %s: given twice: remove one", w.key)
		}
		next[w.key] = w
	}
	c.passThrough(next, gone, &ch)
	for _, s := range put {
		w := next[v1alpha1.KeyOf(s.Spec)]
		old := c.wanted[w.key]
		if old != nil && old.equal(w) {
			continue
		}
		w.hash = v1alpha1.Hash(&w.spec.Spec)
		if old == nil {
			ch.added = append(ch.added, w)
		} else {
			ch.changed = append(ch.changed, w)
		}
		if old != nil && w.sameImage(old) {
			w.prepared.Store(old.prepared.Load())
		} else {
			ch.prepare = append(ch.prepare, w)
		}
	}
	if n := len(c.wanted) + len(ch.added) - len(ch.removed); n > c.most && len(ch.added) > 0 {
		return ch, fmt.Errorf("service %s: the gates have room for %d services, this would be number %d: "+
			"raise --services of daemons and controller (sizes.services of the chart), or remove some",
			ch.added[0].key, c.most, n)
	}
	return ch, c.checkAddresses(ch, next, gone)
}

// passThrough restricts services to the clients that all of their revisions let in: which revision gets a request is
// decided after its connection. Services that are not put are among the changes if that changes theirs.
func (c *catalog) passThrough(next map[v1alpha1.Key]*wanted, gone map[v1alpha1.Key]bool, ch *changes) {
	through := func(w *wanted) (common *sources.Set) {
		for _, r := range w.spec.Spec.Traffic {
			key := v1alpha1.Key(w.spec.Namespace + "/" + r.Revision)
			revision := next[key]
			if revision == nil && !gone[key] {
				revision = c.wanted[key]
			}
			if revision == nil {
				continue
			}
			if allowed, restricted := revision.allowed(0); restricted {
				if common != nil {
					allowed = allowed.Intersect(*common)
				}
				common = &allowed
			}
		}
		return common
	}
	for _, w := range next {
		w.through = through(w)
	}
	for key := range c.splitting {
		if next[key] != nil || gone[key] {
			continue
		}
		old := c.wanted[key]
		if set := through(old); !sameSet(set, old.through) {
			ch.changed = append(ch.changed, old.with(set))
		}
	}
}

// checkAddresses returns an error if a service of a plan would have the address and port of another one.
func (c *catalog) checkAddresses(ch changes, next map[v1alpha1.Key]*wanted, gone map[v1alpha1.Key]bool) error {
	taken := map[netip.AddrPort]v1alpha1.Key{}
	for _, w := range slices.Concat(ch.added, ch.changed) {
		for _, a := range w.addrs() {
			other, clash := taken[a]
			if !clash {
				if other, clash = c.holders[a]; clash {
					moves := next[other] != nil && !slices.Contains(next[other].addrs(), a)
					clash = other != w.key && !gone[other] && !moves
				}
			}
			if clash {
				return fmt.Errorf("service %s: service address %v is already that of service %s: choose another address or "+
					"port", w.key, a, other)
			}
			taken[a] = w.key
		}
	}
	return nil
}

// commit takes over a plan.
func (c *catalog) commit(ch changes) {
	free := func(w *wanted) {
		for _, a := range w.addrs() {
			delete(c.holders, a)
		}
	}
	for _, k := range ch.removed {
		free(c.wanted[k])
		delete(c.wanted, k)
		delete(c.splitting, k)
	}
	for _, w := range ch.changed {
		free(c.wanted[w.key])
	}
	for _, w := range slices.Concat(ch.added, ch.changed) {
		c.wanted[w.key] = w
		for _, a := range w.addrs() {
			c.holders[a] = w.key
		}
		if delete(c.splitting, w.key); w.splits() {
			c.splitting[w.key] = true
		}
	}
}

// all returns all services, sorted.
func (c *catalog) all() []*wanted {
	all := make([]*wanted, 0, len(c.wanted))
	for _, w := range c.wanted {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b *wanted) int { return compareKeys(a.key, b.key) })
	return all
}

// close refuses further updates.
func (c *catalog) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// updater carries out changes, on the loop.
type updater struct {
	engine  *engine
	adopter *adopter

	vacated map[netip.AddrPort]vacancy // addresses that services leave
	renamed []netip.AddrPort           // former first addresses of services that keep the port
	upserts []wire.Service
	after   []func() // steps of machines, once the daemons' table has changed
	begun   []*service

	revisions map[v1alpha1.Key]bool // services to which others have routed requests so far
}

// vacancy is an address that a service leaves.
type vacancy struct {
	service *service
	to      netip.AddrPort // the address of the same port of the service from then on; the zero value if that is removed
}

// update carries out changes.
func update(e *engine, a *adopter, ch changes) {
	u := &updater{engine: e, adopter: a, vacated: map[netip.AddrPort]vacancy{}}
	if len(ch.removed) > 0 {
		u.revisions = e.table.revisions()
	}
	if ch.first {
		e.synced = true
		e.prefetch.Begin()
		e.daemons.watchAlone()
	}
	u.vacate(ch.changed) // first, as others may come to these addresses
	for _, w := range ch.added {
		u.add(w)
	}
	for _, w := range ch.changed {
		u.change(w)
	}
	for _, k := range ch.removed {
		u.remove(k)
	}
	u.updateTable(ch.first)
	for _, f := range u.after {
		f()
	}
	a.adopt(ch.found)
	if ch.first {
		a.adoptEarly()
	}
	if ch.first || e.cluster == nil {
		for _, s := range u.begun {
			e.begin(s)
		}
	} // otherwise lookFor begins them
}

// vacate frees the addresses of services that move to other ones.
func (u *updater) vacate(changed []*wanted) {
	e := u.engine
	for _, w := range changed {
		s := e.table.services[w.key]
		if s.machine.Deleted() {
			continue
		}
		next := w.addrs()
		for i, a := range s.addrs() {
			if slices.Contains(next, a) {
				continue
			}
			delete(e.table.byAddr, a)
			u.vacated[a] = vacancy{s, w.successor(s.wanted, i)}
		}
		if s.addr != w.addr && slices.Contains(next, s.addr) {
			u.renamed = append(u.renamed, s.addr)
		}
	}
}

// successor is the address of a port, counted from 0, that an older version of the service has; the zero value if it is
// not there any more. The only port of a service is the successor of its only one.
func (w *wanted) successor(old *wanted, port int) netip.AddrPort {
	name := old.ports[port].Name
	i := slices.IndexFunc(w.ports, func(p v1alpha1.Port) bool { return p.Name == name })
	if len(w.ports) == 1 && len(old.ports) == 1 {
		i = 0
	}
	if i < 0 {
		return netip.AddrPort{}
	}
	return w.at(w.ports[i])
}

func (u *updater) add(w *wanted) {
	e := u.engine
	if s := e.table.services[w.key]; s != nil { // it is still being removed
		s.again = w
		return
	}
	s, taken := e.add(w)
	u.begun = append(u.begun, s)
	u.upserts = append(u.upserts, w.entry())
	for _, a := range w.addrs() {
		taken = taken || u.vacated[a].service != nil
	}
	if taken {
		u.after = append(u.after, func() { e.step(s, lifecycle.Rejoined{}) })
	}
}

func (u *updater) change(w *wanted) {
	e := u.engine
	s := e.table.services[w.key]
	if s.machine.Deleted() {
		s.again = w
		return
	}
	u.upserts = append(u.upserts, w.entry())
	s.sleep.is(s.asleep(), monotime.Now(), requestsOf(&s.spec.Spec))
	old := s.wanted
	w.volumes = old.volumes // until those of another image are known
	s.wanted = w
	e.table.unroute(old, w)
	if w.splits() != old.splits() {
		s.sleep.is(s.asleep(), monotime.Now(), requestsOf(&s.spec.Spec))
	}
	s.imageErr, s.pull = "", nil
	s.images.Set(w.spec, w.hash)
	e.planner.keepHistory(s)
	e.planner.plan(s, s.foresight.saved, time.Now())
	e.prefetch.Touch()
	for _, a := range w.addrs() {
		if e.table.byAddr[a] != s {
			e.evict(a)
			e.table.byAddr[a] = s
		}
	}
	u.after = append(u.after, func() {
		e.step(s, lifecycle.SpecChanged{
			Spec: s.lifecycle(e.cluster != nil), Restart: old.hash != w.hash && !w.splits(),
		})
		if w.splits() && !old.splits() {
			e.planner.dismiss(s)
			e.step(s, lifecycle.SleepAsked{})
		}
		if old.addr != w.addr {
			s.machine.SkipGenerations(e.newGeneration())
			e.step(s, lifecycle.Rejoined{})
		}
	})
}

func (u *updater) remove(k v1alpha1.Key) {
	e := u.engine
	s := e.table.services[k]
	switch {
	case s == nil:
	case s.machine.Deleted():
		s.again = nil
	default:
		leaves := (u.revisions[k] || s.hasOldRequests(monotime.Now())) && !s.homeless && !s.splits() &&
			s.spec.Spec.BalancesRequests()
		if leaves {
			entry := s.entry()
			entry.Requests.Leaving = true
			u.upserts = append(u.upserts, entry)
		}
		u.after = append(u.after, func() { e.step(s, lifecycle.Deleted{Drain: leaves}) })
		e.prefetch.Touch()
	}
}

// updateTable changes the daemons' table of services. Connections at addresses that services leave go on, unless
// another service takes the address at once. SYNs that are parked there are refused in any case.
func (u *updater) updateTable(first bool) {
	if first {
		u.engine.daemons.setServices(u.upserts)
		return
	}
	removals := u.renamed
	for a, v := range u.vacated {
		s := v.service
		if u.engine.table.byAddr[a] != nil || !v.to.IsValid() {
			reason := "the service has another address now: " + s.addr.String()
			u.engine.daemons.broadcast(&wire.Refuse{Service: a, Reason: reason})
		} else {
			u.engine.daemons.broadcast(&wire.Moved{From: a, To: v.to, DrainMillis: s.drainMillis()})
		}
		if u.engine.table.byAddr[a] == nil {
			removals = append(removals, a)
		}
	}
	u.engine.daemons.updateServices(u.upserts, removals)
}
