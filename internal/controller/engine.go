// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/controller/images"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// engine runs the state machines of all services, and has their decisions carried out. It belongs to the loop.
type engine struct {
	loop      *loop
	events    *hub
	table     *table
	daemons   *daemons
	publisher *publisher
	runner    *runner
	scaler    *autoscaler
	freezer   *freezer
	relief    *relief
	planner   *planner
	preparer  *preparer
	prefetch  *images.Planner // nil on one machine
	wakes     *wakes
	changed   *changedSet
	pressures *pressures
	alerts    alertBuckets
	caller    func(v1alpha1.Key, wire.Caller) // Config.Caller; may be nil
	held      map[v1alpha1.Key]int            // by how many users a service is kept awake
	cluster   runtime.Cluster                 // nil on one machine
	began     time.Time                       // with the monotonic clock

	due      deadlines
	removals []netip.AddrPort // addresses of services that are gone, not yet removed from the daemons' table
	synced   bool             // the first set of services is complete
	closing  bool             // all services are being removed
	idle     chan struct{}    // closed as soon as no pod is left, if set
}

// step delivers an event to a service's machine and carries out its actions. While the controller ends, nothing is
// decided: a start that the shutdown cancelled must not refuse clients, which wait for the next controller.
func (e *engine) step(s *service, ev lifecycle.Event) {
	if e.loop.halted || e.loop.retired && !reportsPod(ev) {
		return
	}
	before := s.machine.State()
	for _, a := range s.machine.Step(ev, monotime.Now()) {
		e.do(s, a)
	}
	if after := s.machine.State(); after != before {
		s.sleep.is(s.asleep(), monotime.Now(), requestsOf(&s.spec.Spec))
		if after == lifecycle.Cold {
			e.planner.keepHistory(s)
		}
		s.spent.enter(after, monotime.Now())
		e.events.emit(status.Event{Time: time.Now(), Kind: status.EventState, Service: s.key, State: after.String()})
	}
	e.changed.check(s)
	e.scaler.watch(s)
	s.checkWaiters()
	if s.machine.Gone() {
		e.remove(s)
	}
}

// reportsPod reports whether an event describes the fate of a pod. A retired controller still forwards those to
// daemons. All other events call for a decision.
func reportsPod(ev lifecycle.Event) bool {
	switch ev.(type) {
	case lifecycle.PhaseEnded, lifecycle.NetworkReady, lifecycle.Waits, lifecycle.Started, lifecycle.StartFailed,
		lifecycle.Listening, lifecycle.Trace, lifecycle.Exited, lifecycle.Ended, lifecycle.StopDone, lifecycle.Adopted,
		lifecycle.Appeared, lifecycle.Leaving, lifecycle.Rejoined:
		return true
	}
	return false
}

// do carries out an action.
func (e *engine) do(s *service, a lifecycle.Action) {
	switch a := a.(type) {
	case lifecycle.StartPod:
		e.runner.start(s, a.Ref)
	case lifecycle.PublishBackends:
		e.publisher.publish(s, a)
	case lifecycle.RefuseParked:
		s.askers = nil
		if !s.homeless && !e.loop.retired {
			e.refuse(s, a)
		}
	case lifecycle.StopPod:
		e.runner.stop(s.pod(a.Ref), a.Grace)
	case lifecycle.FreezePods:
		e.freezer.send(s, a)
	case lifecycle.ArmTimer:
		e.due.set(s, a.At)
	case lifecycle.Record:
		e.wakes.record(s, a)
	case lifecycle.Report:
		if e.closing && a.Severity == lifecycle.Info {
			return // there would be one for each of ten thousand services
		}
		severity := [...]string{status.SeverityInfo, status.SeverityWarning, status.SeverityError}[a.Severity]
		e.events.report(s.key, a.Reason, severity, a.Text)
	}
}

// refuse has the parked clients of a service refused, at all its ports or some.
func (e *engine) refuse(s *service, a lifecycle.RefuseParked) {
	reason := text.Shorten(a.Reason, wire.MaxReason)
	for i, at := range s.addrs() {
		if a.Ports == 0 || a.Ports.Has(i) {
			e.daemons.broadcast(&wire.Refuse{Service: at, Reason: reason})
		}
	}
}

// begin starts the pods that a service keeps while it is not used, unless they were found running.
func (e *engine) begin(s *service) { e.step(s, lifecycle.Timer{}) }

// add adds a service. The caller adds it to the daemons' table. taken is set if the address belonged to another
// service: the caller then publishes, so that daemons drop the other's pods.
func (e *engine) add(w *wanted) (s *service, taken bool) {
	s = &service{wanted: w, heapPos: -1}
	if made := w.spec.CreationTimestamp; !made.IsZero() && made.Time.Before(e.began) {
		s.historySince = e.began
	}
	e.planner.plan(s, w.history, time.Now())
	s.foresight.unsure = w.history != ""
	s.machine = lifecycle.New(s.lifecycle(e.cluster != nil), e.newGeneration())
	s.sleep, s.pressures = newSleep(monotime.Now()), e.pressures
	if w.splits() {
		s.sleep.is(false, monotime.Now(), requestsOf(&w.spec.Spec))
	}
	s.spent.since = monotime.Now()
	s.images.Set(w.spec, w.hash)
	s.images.Digests.Set(&w.spec.Spec, w.digests)
	for _, a := range w.addrs() {
		taken = e.evict(a) || taken
		e.table.byAddr[a] = s
	}
	e.table.services[w.key] = s
	e.changed.add(w.key)
	e.prefetch.Touch()
	return s, taken
}

// evict takes an address from a service that is being removed. It reports whether there was one.
func (e *engine) evict(a netip.AddrPort) bool {
	holder := e.table.byAddr[a]
	if holder == nil {
		return false
	}
	holder.homeless = true
	for _, a := range holder.addrs() {
		if e.table.byAddr[a] == holder {
			e.daemons.broadcast(&wire.Refuse{Service: a, Reason: "the service was removed"})
			delete(e.table.byAddr, a)
		}
	}
	if a != holder.addr {
		e.removals = append(e.removals, holder.addr)
	}
	return true
}

// remove forgets a service of which nothing remains, or begins anew if it is wanted again.
func (e *engine) remove(s *service) {
	if e.table.services[s.key] != s {
		return
	}
	e.due.set(s, 0)
	s.foresight.stop()
	delete(e.table.services, s.key)
	e.wakes.forget(s.key)
	e.changed.add(s.key)
	e.prefetch.Forget(s.key)
	for _, a := range s.addrs() {
		if e.table.byAddr[a] == s {
			delete(e.table.byAddr, a)
			if a == s.addr {
				e.removals = append(e.removals, a)
			}
		}
	}
	if s.again != nil {
		again, taken := e.add(s.again)
		e.daemons.updateServices([]wire.Service{s.again.entry()}, nil)
		if taken {
			e.step(again, lifecycle.Rejoined{})
		}
		e.begin(again)
		e.preparer.add(s.again)
	} else if !e.closing {
		e.preparer.forget(s.key)
	}
	e.checkIdle()
}

// imagePulling records the progress of fetching a service's image; nil when fetching ends.
func (e *engine) imagePulling(w *wanted, pull *status.Pull) {
	if s := e.table.services[w.key]; s != nil && s.wanted == w {
		s.pull = pull
	}
}

// imagePrepared records that the image of a service is present, or why it is not.
func (e *engine) imagePrepared(w *wanted, reason string) {
	if s := e.table.services[w.key]; s != nil && s.wanted == w {
		s.imageErr = reason
		e.changed.check(s)
	}
}

// volumesFound records the volumes of its images that a service keeps. If there are any, no two of its pods may run: a
// pod that is there already ends before the next one starts.
func (e *engine) volumesFound(w *wanted, kept []string) {
	s := e.table.services[w.key]
	if s == nil || s.wanted != w || slices.Equal(w.volumes, kept) {
		return
	}
	single := s.lifecycle(false).Single
	w.volumes = kept
	if spec := s.lifecycle(false); spec.Single != single && !s.machine.Deleted() {
		e.step(s, lifecycle.SpecChanged{Spec: spec, Restart: spec.Single && len(s.pods) > 1})
	}
}

// newGeneration returns a number above all generations published so far, by earlier controllers as well: the time.
// Their clocks may have differed, so daemons forget generations when they connect to another controller.
func (e *engine) newGeneration() uint64 {
	return uint64(e.began.UnixNano()) + uint64(time.Since(e.began))
}

// turn runs after each function of the loop: it does what is due, and returns the time of the next timer.
func (e *engine) turn(nodes *nodes) monotime.Time {
	e.runDue()
	e.flushRemovals()
	if e.synced && !e.loop.retired {
		nodes.flush()
	}
	return e.due.first()
}

// unreported reports whether pods of a service may run of which no daemon has reported yet.
func (e *engine) unreported(s *service) bool {
	if e.cluster == nil {
		return false
	}
	for _, id := range e.cluster.Inherited(s.key) {
		if !slices.ContainsFunc(s.pods, func(p *pod) bool { return p.rt.ID == id }) {
			return true
		}
	}
	return false
}

// runDue delivers the timers whose time has come.
func (e *engine) runDue() {
	for now := monotime.Now(); len(e.due) > 0 && e.due[0].due <= now; {
		s := e.due[0]
		before := s.due
		e.step(s, lifecycle.Timer{Rolling: e.cluster != nil && e.cluster.Rolling(s.key)})
		if len(e.due) > 0 && e.due[0] == s && s.due == before {
			e.due.set(s, 0) // a machine that ignores its own timer must not hold up the others
		}
	}
}

// flushRemovals removes the addresses of services that are gone from the daemons' table.
func (e *engine) flushRemovals() {
	if len(e.removals) == 0 || e.closing {
		return
	}
	gone := e.removals[:0]
	for _, a := range e.removals {
		if s := e.table.byAddr[a]; s == nil || s.addr != a {
			gone = append(gone, a)
		}
	}
	e.daemons.updateServices(nil, gone)
	e.removals = nil
}

// shutdown removes all services, and closes idle when no pod is left.
func (e *engine) shutdown(idle chan struct{}) {
	e.closing, e.idle = true, idle
	for _, s := range e.table.services {
		s.again = nil
		e.planner.keepHistory(s)
		e.step(s, lifecycle.Deleted{})
	}
	e.checkIdle()
}

// checkIdle closes idle if no pod is left.
func (e *engine) checkIdle() {
	if e.idle != nil && len(e.table.services) == 0 && e.runner.orphans == 0 {
		close(e.idle)
		e.idle = nil
	}
}

// podsLeft is the number of pods that are not gone.
func (e *engine) podsLeft() int {
	left := e.runner.orphans
	for _, s := range e.table.services {
		left += len(s.pods)
	}
	return left
}
