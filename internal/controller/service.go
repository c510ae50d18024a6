// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"container/heap"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/scale"
	"wangell.loutres.me/internal/wire"
)

// wanted is a service as applied. It does not change; a new Apply makes a new one.
type wanted struct {
	key  runtime.Key
	spec *v1alpha1.WangellService
	hash string
	addr netip.AddrPort
	// announce: one of the nodes answers ARP for the address.
	announce bool
	// prepared: the runtime has the image.
	prepared atomic.Bool
}

// entry is the service in the table of the daemons.
func (w *wanted) entry() wire.Service {
	s := &w.spec.Spec
	e := wire.Service{
		Addr: w.addr, Name: string(w.key), IdleSeconds: uint32(s.IdleTimeout),
		MaxParked: uint16(s.MaxParked), MaxParkedPerSource: uint16(s.MaxParkedPerSource),
	}
	if w.announce {
		e.Flags |= wire.FlagAnnounce
	}
	if s.SessionAffinity == corev1.ServiceAffinityClientIP {
		e.Flags |= wire.FlagAffinity
	}
	if s.Balancing != nil && s.Balancing.LocalityPreference == v1alpha1.LocalityLocal {
		e.Flags |= wire.FlagPreferLocal
	}
	if metered(s) {
		e.Flags |= wire.FlagUsage
	}
	if s.Retries != nil {
		e.Retries = uint8(*s.Retries)
	}
	return e
}

// wakeSpec is what the state machine has to know of the service.
func (w *wanted) wakeSpec(rolls bool) lifecycle.Spec {
	s := &w.spec.Spec
	spec := lifecycle.Spec{
		Name: string(w.key), Port: uint16(s.TargetPort),
		WakeTimeout: time.Duration(s.WakeTimeout) * time.Second, Grace: w.grace(),
		Min: int(s.MinReplicas), Max: int(s.MaxReplicas), Rolls: rolls,
	}
	if s.DrainTimeout != nil {
		spec.DrainTimeout = max(time.Duration(*s.DrainTimeout)*time.Second, 1) // 0 is no default here
	}
	if s.Scaling != nil {
		spec.BurstPerPod = int(s.Scaling.BurstPerPod)
	}
	return spec
}

func (w *wanted) grace() time.Duration {
	return time.Duration(*w.spec.Spec.TerminationGracePeriodSeconds) * time.Second
}

// service is a service with all that is known of it. It belongs to the loop.
type service struct {
	*wanted
	machine   *lifecycle.Machine
	pods      []*pod
	traffic   Traffic       // of all its pods, also those that are gone
	last      monotime.Time // when it saw a packet last
	imageErr  string        // why its image could not be fetched ahead of need
	counted   uint64        // number of the last wake that is in the metrics
	again     *wanted       // applied again while it is being removed
	homeless  bool          // its address belongs to another service already
	sleepers  []*sleeper
	scaler    scale.Scaler         // while it follows its load
	rate      rate                 // of new flows, too
	measured  monotime.Time        // when the runtime was asked what its pods use
	wake      *lifecycle.Waterfall // the last one
	idleWords map[string]idleWord  // by node
	sent      *wire.Backends       // what daemons were told last; nil if nothing
	round     *round               // of a drain that not every daemon has acknowledged yet
	told      glance               // what those who wait for changes know
	due       monotime.Time
	heapPos   int
}

// pod is a pod of a service from StartPod to StopDone.
type pod struct {
	service  *service
	ref      lifecycle.Ref
	port     uint16      // on which it is expected to listen
	rt       runtime.Pod // zero before its network is ready
	id       uint64      // its wire ID; 0 before its network is ready
	node     string      // its home node, once its network is ready
	cancel   context.CancelFunc
	returned bool          // Start has returned
	served   bool          // it was published as one that listens
	exited   bool          // its process ended
	early    *runtime.Exit // that came before Start had returned
	stopping bool
	grace    time.Duration
	stats    wire.PodStats
	used     consumption
	load     uint32                 // its open flows as its home node told last, for other nodes
	loaded   bool                   // it did
	state    lifecycle.BackendState // as last published; 0 if it is not
	// quietFrom: the first generation whose Quiet counts, because every daemon knows of the drain; 0 before that.
	quietFrom uint64
}

// sleeper waits until pods are gone.
type sleeper struct {
	refs map[lifecycle.Ref]bool
	done chan struct{}
}

// step gives an event to the service's machine and does what it says. Once the controller ends, nothing is decided any
// more: that a start was given up because of that is no reason to refuse clients who wait for the next controller.
func (c *Controller) step(s *service, ev lifecycle.Event) {
	if c.halted {
		return
	}
	before := s.machine.State()
	for _, a := range s.machine.Step(ev, monotime.Now()) {
		c.do(s, a)
	}
	if after := s.machine.State(); after != before {
		c.hub.emit(Event{Time: time.Now(), Kind: EventState, Service: s.key, State: after.String()})
	}
	c.look(s)
	c.watchLoad(s)
	if s.machine.Gone() {
		c.remove(s)
	}
}

func (c *Controller) do(s *service, a lifecycle.Action) {
	switch a := a.(type) {
	case lifecycle.StartPod:
		c.start(s, a.Ref)
	case lifecycle.PublishBackends:
		c.publish(s, a)
	case lifecycle.RefuseParked:
		if !s.homeless {
			c.broadcast(&wire.Refuse{Service: s.addr, Reason: truncate(a.Reason, maxReason)})
		}
	case lifecycle.StopPod:
		c.stop(s.pod(a.Ref), a.Grace)
	case lifecycle.ArmTimer:
		c.due.set(s, a.At)
	case lifecycle.Record:
		c.record(s, a)
	case lifecycle.Report:
		if c.closing && a.Severity == lifecycle.Info {
			return // ten thousand times "removed"
		}
		c.report(s.key, [...]string{SeverityInfo, SeverityWarning, SeverityError}[a.Severity], a.Text)
	}
}

// report tells users of a service, or of the whole if key is empty.
func (c *Controller) report(key runtime.Key, severity, text string) {
	c.hub.emit(Event{Time: time.Now(), Kind: EventReport, Service: key, Severity: severity, Text: text})
}

func (c *Controller) record(s *service, r lifecycle.Record) {
	if r.First {
		now := monotime.Now()
		r.Waterfall.Start = time.Now().Add(-now.Sub(r.Waterfall.SYNSeen))
	} else if s.wake != nil && s.wake.Number == r.Waterfall.Number {
		r.Waterfall.Start = s.wake.Start
	}
	c.ring.Put(r)
	s.wake = &r.Waterfall
	c.meters.phases(r.News)
	if w := r.Waterfall; w.Result != lifecycle.ResultRunning && s.counted < w.Number {
		s.counted = w.Number
		c.meters.wakes.WithLabelValues(string(w.Result)).Inc()
	}
}

func (s *service) pod(r lifecycle.Ref) *pod {
	for _, p := range s.pods {
		if p.ref == r {
			return p
		}
	}
	return nil
}

// remove forgets a service of which nothing remains, or begins anew if it is wanted again.
func (c *Controller) remove(s *service) {
	if c.services[s.key] != s {
		return
	}
	c.due.set(s, 0)
	delete(c.services, s.key)
	c.changed.add(s.key)
	if c.byAddr[s.addr] == s {
		delete(c.byAddr, s.addr)
		c.removals = append(c.removals, s.addr)
	}
	if s.again != nil {
		again, taken := c.add(s.again)
		c.update([]wire.Service{s.again.entry()}, nil)
		if taken {
			c.step(again, lifecycle.Rejoined{})
		}
		c.begin(again)
		c.images.add(s.again)
	} else if !c.closing {
		c.images.forget(s.key)
	}
	c.checkIdle()
}

// add begins a service. The table of the daemons is the caller's business, and if the address was
// taken from another service, so is to tell them that its pods are none of this one's.
func (c *Controller) add(w *wanted) (s *service, taken bool) {
	s = &service{wanted: w, machine: lifecycle.New(w.wakeSpec(c.cluster != nil), c.newGeneration()), heapPos: -1}
	taken = c.evict(w.addr)
	c.services[w.key] = s
	c.byAddr[w.addr] = s
	c.changed.add(w.key)
	return s, taken
}

// evict takes an address from a service that is being removed. It reports whether there was one.
func (c *Controller) evict(a netip.AddrPort) bool {
	holder := c.byAddr[a]
	if holder == nil {
		return false
	}
	c.broadcast(&wire.Refuse{Service: a, Reason: "the service was removed"})
	holder.homeless = true
	delete(c.byAddr, a)
	return true
}

// flushRemovals takes the addresses of services that are gone from the daemons' table.
func (c *Controller) flushRemovals() {
	if len(c.removals) == 0 || c.closing {
		return
	}
	gone := c.removals[:0]
	for _, a := range c.removals {
		if c.byAddr[a] == nil {
			gone = append(gone, a)
		}
	}
	c.update(nil, gone)
	c.removals = nil
}

// update changes the daemons' table of services.
func (c *Controller) update(upserts []wire.Service, removals []netip.AddrPort) {
	if len(upserts)+len(removals) == 0 {
		return
	}
	if err := c.server.UpdateServices(upserts, removals); err != nil {
		c.report("", SeverityError, fmt.Sprintf("the daemons' table of services cannot be changed: %v", err))
	}
}

// newGeneration is above all that anybody has published before: generations begin at times. A controller before this one
// may have had another clock; so daemons forget generations when they meet another controller.
func (c *Controller) newGeneration() uint64 {
	return uint64(c.began.UnixNano()) + uint64(time.Since(c.began))
}

// maxReason is how many bytes of a reason fit into wire.Refuse.
const maxReason = 200

// truncate cuts a text to n bytes, at a rune's boundary.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const mark = "…"
	n -= len(mark)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}

// bare is an error's text without the service's name, which reports have already.
func bare(k runtime.Key, err error) string {
	return strings.TrimPrefix(err.Error(), fmt.Sprintf("service %s: ", k))
}

// deadlines are the services that wait for a time, the earliest first.
type deadlines []*service

// set makes at the time for which a service waits; zero for none.
func (d *deadlines) set(s *service, at monotime.Time) {
	s.due = at
	switch {
	case at == 0 && s.heapPos >= 0:
		heap.Remove(d, s.heapPos)
	case at != 0 && s.heapPos >= 0:
		heap.Fix(d, s.heapPos)
	case at != 0:
		heap.Push(d, s)
	}
}

// first is the earliest time, zero if there is none.
func (d deadlines) first() monotime.Time {
	if len(d) == 0 {
		return 0
	}
	return d[0].due
}

// Len implements heap.Interface.
func (d deadlines) Len() int { return len(d) }

// Less implements heap.Interface.
func (d deadlines) Less(i, j int) bool { return d[i].due < d[j].due }

// Swap implements heap.Interface.
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].heapPos, d[j].heapPos = i, j
}

// Push implements heap.Interface.
func (d *deadlines) Push(x any) {
	s := x.(*service)
	s.heapPos = len(*d)
	*d = append(*d, s)
}

// Pop implements heap.Interface.
func (d *deadlines) Pop() any {
	old := *d
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	s.heapPos = -1
	return s
}

// runDue delivers the timers that have come.
func (c *Controller) runDue() {
	for now := monotime.Now(); len(c.due) > 0 && c.due[0].due <= now; {
		s := c.due[0]
		before := s.due
		c.step(s, lifecycle.Timer{Rolling: c.cluster != nil && c.cluster.Rolling(s.key)})
		if len(c.due) > 0 && c.due[0] == s && s.due == before {
			c.due.set(s, 0) // a machine with nothing to do at its own time must not hold up the others
		}
	}
}
