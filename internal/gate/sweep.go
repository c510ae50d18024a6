// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"wangell.loutres.me/internal/base/monotime"
)

// Ages are the maximum ages of flows, measured from the last segment that fits the flow. A pod's bare ACKs do not
// count, because anyone can provoke them (RFC 5961).
type Ages struct {
	HalfOpen    time.Duration // of a flow in handshake, or closed by both sides with a FIN
	Closed      time.Duration // of a closed flow, which is kept for stragglers
	HalfClosed  time.Duration // of a flow that one side has closed with a FIN
	Established time.Duration // of any other flow
}

// DefaultAges returns the ages for a table with room: TCP gives up on a handshake after about 60 s, and an established
// connection may be silent for 2 h 4 min (RFC 5382, REQ-5), a little more than the usual interval of keep-alives.
func DefaultAges() Ages {
	return Ages{HalfOpen: 70 * time.Second, Closed: 15 * time.Second, HalfClosed: 4 * time.Minute,
		Established: 124 * time.Minute}
}

// shortestAges returns the ages for a table that is almost full.
func shortestAges() Ages {
	return Ages{HalfOpen: 20 * time.Second, Closed: 5 * time.Second, HalfClosed: 30 * time.Second,
		Established: 10 * time.Minute}
}

// Fills of the flow table between which ages become shorter.
const (
	fillToShorten  = 0.75
	fillToShortest = 0.95
)

// AgesAt returns the ages for a fill of the flow table, 0 to 1: the default ages up to three quarters, and then ever
// shorter ones.
func AgesAt(fill float64) Ages {
	part := min(max((fill-fillToShorten)/(fillToShortest-fillToShorten), 0), 1)
	between := func(from, to time.Duration) time.Duration { return from - time.Duration(part*float64(from-to)) }
	from, to := DefaultAges(), shortestAges()
	return Ages{
		HalfOpen:    between(from.HalfOpen, to.HalfOpen),
		Closed:      between(from.Closed, to.Closed),
		HalfClosed:  between(from.HalfClosed, to.HalfClosed),
		Established: between(from.Established, to.Established),
	}
}

// MaxFlows returns how many flows the flow table can hold.
func (g *Gate) MaxFlows() int { return int(g.cfg.Sizes.Flows) }

// Swept is the result of Sweep.
type Swept struct {
	Flows   uint32 // remaining flows
	Evicted uint32 // flows removed before their age because the table was almost full
	Fixed   int    // pods, client addresses and services whose counts were wrong
	Parked  int    // removed leftovers of parked SYNs
}

// Sweep removes flows that have ended, counts the others, and corrects the counts of pods, client addresses and
// services where they differ. Counts that change meanwhile are left to the next sweep. If the table is almost full, it
// also evicts the flows that have been silent for longest. Finally it removes leftovers of parked SYNs from races
// between the programs. Only one sweep may run at a time.
func (g *Gate) Sweep(ages Ages) (Swept, error) {
	first, err := g.recount(ages, eviction{})
	if err != nil {
		return Swept{}, err
	}
	s := Swept{Flows: first.left}
	if g.almostFull(first.left) {
		if first, err = g.makeRoom(ages); err != nil {
			return Swept{}, err
		}
		s.Evicted, s.Flows = s.Flows-min(s.Flows, first.left), first.left
	}
	if first.wrong() {
		// A count may have changed during the walk, and a walk through a changing table may miss flows. A count that is
		// really wrong is wrong twice.
		again, err := g.recount(ages, eviction{})
		if err != nil {
			return Swept{}, err
		}
		s.Flows, s.Fixed = again.left, g.correctAll(first, again)
	}
	s.Parked, err = g.sweepParked()
	return s, err
}

// makeRoom removes flows before their age: first flows that have begun to end, and if that is not enough, the flows
// that have been silent for longest.
func (g *Gate) makeRoom(ages Ages) (recounted, error) {
	least := shortestAges()
	least.Established = ages.Established
	r, err := g.recount(least, eviction{})
	if err != nil || !g.almostFull(r.left) {
		return r, err
	}
	return g.recount(least, g.evictions(r.left))
}

// flowCounts counts a pod's flows.
type flowCounts struct{ open, halfOpen uint32 }

// miscount is a pod's recorded counts, and its true ones.
type miscount struct{ is, want flowCounts }

// recounted is the result of recount.
type recounted struct {
	left              uint32                // flows in the table
	pods              map[uint32]miscount   // wrong counts, by pod index
	sources, services map[uint32]shareCount // likewise, by index of the share
}

// wrong reports whether any count is wrong.
func (r *recounted) wrong() bool { return len(r.pods)+len(r.sources)+len(r.services) > 0 }

// recount runs gate_sweep.
func (g *Gate) recount(ages Ages, e eviction) (recounted, error) {
	for i := range g.recounts.items {
		r := g.recounts.at(uint32(i))
		atomic.StoreUint32(&r.Open, 0)
		atomic.StoreUint32(&r.HalfOpen, 0)
	}
	clear(g.idle.items)
	clearFound(g.sourceShares)
	clearFound(g.serviceShares)
	args := gateSweepArgs{
		HalfOpen:    uint64(ages.HalfOpen),
		Closed:      uint64(ages.Closed),
		HalfClosed:  uint64(ages.HalfClosed),
		Established: uint64(ages.Established),
	}
	if e.n > 0 {
		args.Established = min(args.Established, uint64(e.all))
		args.Evictable, args.Evictions = uint64(e.some), uint64(e.n)
	}
	left, err := g.objs.GateSweep.Run(&ebpf.RunOptions{Context: args})
	if err != nil {
		return recounted{}, fmt.Errorf("sweeping the flow table: %w", err)
	}
	out := recounted{left: left, pods: map[uint32]miscount{}}
	for _, i := range g.podTable.used() {
		r, p := g.recounts.at(i), g.pods.at(i)
		found := flowCounts{atomic.LoadUint32(&r.Open), atomic.LoadUint32(&r.HalfOpen)}
		is := flowCounts{atomic.LoadUint32(&p.Open), atomic.LoadUint32(&p.HalfOpen)}
		if is != found {
			out.pods[i] = miscount{is, found}
		}
	}
	out.sources, out.services = wrongShares(g.sourceShares), wrongShares(g.serviceShares)
	return out, nil
}

// countAgain corrects the counts of pods, client addresses and services. No segment may be handled meanwhile, so that
// one walk through the table is enough.
func (g *Gate) countAgain() error {
	r, err := g.recount(DefaultAges(), eviction{})
	g.correctAll(r, r)
	return err
}

// correctAll corrects the counts that were wrong twice by the same amount. It returns their number.
func (g *Gate) correctAll(first, again recounted) (fixed int) {
	for i, m := range again.pods {
		if m == first.pods[i] && g.correct(i, m) {
			fixed++
		}
	}
	fixed += correctShares(g.sourceShares, first.sources, again.sources)
	return fixed + correctShares(g.serviceShares, first.services, again.services)
}

// correct corrects a pod's counts, unless they have changed.
func (g *Gate) correct(pod uint32, m miscount) bool {
	p := g.pods.at(pod)
	a := atomic.CompareAndSwapUint32(&p.Open, m.is.open, m.want.open)
	b := atomic.CompareAndSwapUint32(&p.HalfOpen, m.is.halfOpen, m.want.halfOpen)
	return a && b
}

// parkedSettled is the age of a parked SYN after which the program that parked it has certainly finished.
const parkedSettled = 10 * time.Second

// sweepParked removes leftovers of parked SYNs that nothing will release. It returns the number of removed entries.
func (g *Gate) sweepParked() (int, error) {
	removed := 0
	for _, sweep := range []func() (int, error){g.sweepParkedSYNs, g.sweepParkedFlows, g.sweepParkedSources} {
		n, err := sweep()
		removed += n
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// sweepParkedSYNs removes SYNs of removed services, and SYNs that were parked just behind a release. If nothing changes
// meanwhile, it corrects the number of parked SYNs.
func (g *Gate) sweepParkedSYNs() (removed int, err error) {
	places := g.places.at(0)
	before, found := atomic.LoadInt64(places), int64(0)
	defer func() {
		if err == nil && removed == 0 && before != found {
			atomic.CompareAndSwapInt64(places, before, found)
		}
	}()
	var t gateTicket
	var p gateParked
	it := g.objs.ParkedSyns.Iterate()
	for it.Next(&t, &p) {
		found++
		if monotime.Now().Sub(monotime.Time(p.Seen)) < parkedSettled || g.isReachable(t, &p) {
			continue
		}
		if err := g.unpark(t, false); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, endOf(it)
}

// isReachable reports whether a release or refusal will find a parked SYN.
func (g *Gate) isReachable(t gateTicket, p *gateParked) bool {
	if _, ok := g.services.addr(t.Service); !ok || g.behindTail(t) {
		return false
	}
	var pf gateParkedFlow
	err := g.objs.ParkedFlows.Lookup(p.Flow, &pf)
	if err != nil {
		return !errors.Is(err, ebpf.ErrKeyNotExist)
	}
	return pf.Ticket == t
}

// sweepParkedFlows removes entries that lead to no parked SYN.
func (g *Gate) sweepParkedFlows() (removed int, err error) {
	var k gateFlowKey
	var pf, now gateParkedFlow
	var p gateParked
	it := g.objs.ParkedFlows.Iterate()
	for it.Next(&k, &pf) {
		if err := g.objs.ParkedSyns.Lookup(pf.Ticket, &p); !errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		// A new SYN of the same flow may use the entry by now.
		if g.objs.ParkedFlows.Lookup(k, &now) == nil && now == pf && g.objs.ParkedFlows.Delete(k) == nil {
			removed++
		}
	}
	return removed, endOf(it)
}

// sweepParkedSources removes counts of clients at services without parked SYNs.
func (g *Gate) sweepParkedSources() (removed int, err error) {
	var src gateSourceKey
	var n uint32
	it := g.objs.ParkedSources.Iterate()
	for it.Next(&src, &n) {
		parked := atomic.LoadUint32(&g.statuses.at(src.Service).Parked)
		if parked == 0 && g.objs.ParkedSources.Delete(src) == nil {
			removed++
		}
	}
	return removed, endOf(it)
}

// FlowUsage returns how full the flow table and its largest shares were at the last Sweep. It must not run at the same
// time as a Sweep.
func (g *Gate) FlowUsage(s Swept) []Fill {
	sizes := &g.cfg.Sizes
	source := Fill{Table: "flows_per_source", Flag: "--max-flows-per-source", Size: sizes.FlowsPerSource}
	if i, n := largestShare(g.sourceShares); n > 0 {
		client := binary.NativeEndian.AppendUint32(nil, g.sourceShares.at(i).Client)
		source.Source, source.Used = netip.PrefixFrom(netip.AddrFrom4([4]byte(client)), 32), n
	}
	service := Fill{Table: "flows_per_service", Flag: "--max-flows-per-service", Size: sizes.FlowsPerService}
	if i, n := largestShare(g.serviceShares); n > 0 {
		if a, ok := g.services.addr(i); ok { // else it was just removed
			service.Service, service.Used = a, n
		}
	}
	return []Fill{{Table: "flows", Flag: "--flows", Used: s.Flows, Size: sizes.Flows}, source, service}
}

// Fills of the flow table above which, and down to which, the sweep evicts idle flows.
const (
	fillToEvict = 0.95
	fillEvicted = 0.90
)

// idleUnit is the silence that one entry of the map `idle_flows` stands for.
const idleUnit = time.Duration(1) << gateLimitIDLE_SHIFT

// eviction says which established flows make room for new ones.
type eviction struct {
	all  time.Duration // flows that were silent for longer
	some time.Duration // and n of the flows that were silent for longer than this
	n    uint32        // 0: no eviction
}

// almostFull reports whether the flow table is almost full with a number of flows.
func (g *Gate) almostFull(flows uint32) bool {
	return float64(flows) >= fillToEvict*float64(g.cfg.Sizes.Flows)
}

// evictions decides which flows to evict, given the number of flows, by the findings of the last sweep.
func (g *Gate) evictions(flows uint32) eviction {
	idle := make([]uint32, len(g.idle.items))
	for i := range idle {
		idle[i] = g.idle.at(uint32(i)).Established
	}
	return evict(idle, flows-uint32(fillEvicted*float64(g.cfg.Sizes.Flows)))
}

// evict chooses the flows that were silent for longest, as many as excess if possible. idle[i] is the number of flows
// that were silent for i idleUnits. The flows in idle[0] always stay.
func evict(idle []uint32, excess uint32) eviction {
	older := uint32(0)
	for i := len(idle) - 1; i > 0; i-- {
		if older+idle[i] >= excess || i == 1 {
			return eviction{all: time.Duration(i+1) * idleUnit, some: time.Duration(i) * idleUnit, n: excess - older}
		}
		older += idle[i]
	}
	return eviction{}
}

// shareCount is a recorded count of established flows, and the true one.
type shareCount struct{ is, want uint32 }

// clearFound forgets the counts of the last sweep.
func clearFound(v *view[gateFlowShare]) {
	for i := range v.items {
		s := &v.items[i]
		if s.Found != 0 || s.Votes != 0 {
			s.Found, s.Votes, s.Client = 0, 0, 0
		}
	}
}

// wrongShares returns the recorded counts that differ from the counts of the last sweep.
func wrongShares(v *view[gateFlowShare]) map[uint32]shareCount {
	wrong := map[uint32]shareCount{}
	for i := range v.items {
		s := &v.items[i]
		if is := atomic.LoadUint32(&s.Open); is != s.Found {
			wrong[uint32(i)] = shareCount{is, s.Found}
		}
	}
	return wrong
}

// correctShares corrects the counts that two sweeps found equally wrong, unless they have changed since.
func correctShares(v *view[gateFlowShare], first, again map[uint32]shareCount) (fixed int) {
	for i, c := range again {
		if c == first[i] && atomic.CompareAndSwapUint32(&v.at(i).Open, c.is, c.want) {
			fixed++
		}
	}
	return fixed
}

// largestShare returns the share with the most flows in the last sweep.
func largestShare(v *view[gateFlowShare]) (index, flows uint32) {
	for i := range v.items {
		if n := v.items[i].Found; n > flows {
			index, flows = uint32(i), n
		}
	}
	return index, flows
}
