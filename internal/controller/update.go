// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// updater carries out changes, on the loop.
type updater struct {
	engine  *engine
	adopter *adopter

	vacated map[netip.AddrPort]*service // services by their former addresses
	upserts []wire.Service
	after   []func() // steps of machines, once the daemons' table has changed
	begun   []*service

	revisions map[runtime.Key]bool // services to which others have routed requests so far
}

// update carries out changes.
func update(e *engine, a *adopter, ch changes) {
	u := &updater{engine: e, adopter: a, vacated: map[netip.AddrPort]*service{}}
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
		if s := e.table.services[w.key]; s.addr != w.addr && !s.machine.Deleted() {
			delete(e.table.byAddr, s.addr)
			u.vacated[s.addr] = s
		}
	}
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
	if taken || u.vacated[w.addr] != nil {
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
	if old.addr != w.addr {
		e.evict(w.addr)
		e.table.byAddr[w.addr] = s
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

func (u *updater) remove(k runtime.Key) {
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
	var removals []netip.AddrPort
	for a, s := range u.vacated {
		if u.engine.table.byAddr[a] != nil {
			reason := "the service has another address now: " + s.addr.String()
			u.engine.daemons.broadcast(&wire.Refuse{Service: a, Reason: reason})
			continue
		}
		u.engine.daemons.broadcast(&wire.Moved{From: a, To: s.addr, DrainMillis: s.drainMillis()})
		removals = append(removals, a)
	}
	u.engine.daemons.updateServices(u.upserts, removals)
}
