// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"wangell.loutres.me/internal/monotime"
)

// Ages are how long flows are kept.
type Ages struct {
	HalfOpen    time.Duration // a handshake that goes no further, or a close
	Closed      time.Duration // for stragglers of a closed connection
	Established time.Duration // since the last packet
}

// DefaultAges are those of a careful host: TCP's own handshake gives up after about 60 s, and an
// established connection may be silent for days (RFC 5382, REQ-5 asks for at least 2 h 4 min).
func DefaultAges() Ages {
	return Ages{HalfOpen: 70 * time.Second, Closed: 15 * time.Second, Established: 24 * time.Hour}
}

// Swept tells what Sweep found.
type Swept struct {
	Flows  uint32 // flows that are left
	Fixed  int    // pods whose counts were wrong
	Parked int    // remains of parked SYNs that belonged to nobody
}

// flowCounts are a pod's flows.
type flowCounts struct{ open, halfOpen uint32 }

// Sweep forgets flows that are over, and counts the others: where that differs from a pod's counts, it corrects
// them. A pod whose counts change meanwhile is left for the next time. It also removes what races between the
// programs may have left of parked SYNs. It must not run twice at once.
func (g *Gate) Sweep(ages Ages) (Swept, error) {
	wrong, left, err := g.recount(ages, g.podTable.used())
	if err != nil {
		return Swept{}, err
	}
	s := Swept{Flows: left}
	if len(wrong) > 0 {
		// Counts may have changed on the way, and the walk through a table that changes may miss a flow. What is
		// really wrong is so twice.
		first := wrong
		if wrong, s.Flows, err = g.recount(ages, keys(first)); err != nil {
			return Swept{}, err
		}
		for i, w := range wrong {
			if w == first[i] && g.correct(i, w) {
				s.Fixed++
			}
		}
	}
	s.Parked, err = g.sweepParked()
	return s, err
}

// miscount is what a pod's counts are and what they should be.
type miscount struct{ is, want flowCounts }

// recount runs gate_sweep, and returns those of some pods whose counts did not fit, and the number of all flows.
func (g *Gate) recount(ages Ages, pods []uint32) (map[uint32]miscount, uint32, error) {
	for i := range g.recounts.items {
		r := g.recounts.at(uint32(i))
		atomic.StoreUint32(&r.Open, 0)
		atomic.StoreUint32(&r.HalfOpen, 0)
	}
	args := gateSweepArgs{HalfOpen: uint64(ages.HalfOpen), Closed: uint64(ages.Closed), Established: uint64(ages.Established)}
	left, err := g.objs.GateSweep.Run(&ebpf.RunOptions{Context: args})
	if err != nil {
		return nil, 0, fmt.Errorf("sweeping the flow table: %w", err)
	}
	wrong := map[uint32]miscount{}
	for _, i := range pods {
		r := g.recounts.at(i)
		found := flowCounts{atomic.LoadUint32(&r.Open), atomic.LoadUint32(&r.HalfOpen)}
		if is := g.flowCounts(i); is != found {
			wrong[i] = miscount{is, found}
		}
	}
	return wrong, left, nil
}

func (g *Gate) flowCounts(pod uint32) flowCounts {
	p := g.pods.at(pod)
	return flowCounts{atomic.LoadUint32(&p.Open), atomic.LoadUint32(&p.HalfOpen)}
}

// correct corrects a pod's counts, if they have not changed since.
func (g *Gate) correct(pod uint32, m miscount) bool {
	p := g.pods.at(pod)
	a := atomic.CompareAndSwapUint32(&p.Open, m.is.open, m.want.open)
	b := atomic.CompareAndSwapUint32(&p.HalfOpen, m.is.halfOpen, m.want.halfOpen)
	return a && b
}

func keys[K comparable, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

// parkedSettled is how old a parked SYN is when its program must have ended.
const parkedSettled = 10 * time.Second

// sweepParked removes what is left of parked SYNs that nobody will release: those of a service that is gone, those
// that came in just behind a release, and counts of sources that have none. It returns how many there were.
func (g *Gate) sweepParked() (int, error) {
	removed := 0
	var t gateTicket
	var p gateParked
	syns := g.objs.ParkedSyns.Iterate()
	for syns.Next(&t, &p) {
		if monotime.Now().Sub(monotime.Time(p.Seen)) < parkedSettled || g.parkedWell(t, &p) {
			continue
		}
		if err := g.unpark(t, false); err != nil {
			return removed, err
		}
		removed++
	}
	if err := endOf(syns); err != nil {
		return removed, err
	}
	var k gateFlowKey
	var pf gateParkedFlow
	flows := g.objs.ParkedFlows.Iterate()
	for flows.Next(&k, &pf) {
		if err := g.objs.ParkedSyns.Lookup(pf.Ticket, &p); !errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		// A new SYN of the same flow may have the place now.
		var now gateParkedFlow
		if g.objs.ParkedFlows.Lookup(k, &now) == nil && now == pf && g.objs.ParkedFlows.Delete(k) == nil {
			removed++
		}
	}
	if err := endOf(flows); err != nil {
		return removed, err
	}
	var src gateSourceKey
	var n uint32
	sources := g.objs.ParkedSources.Iterate()
	for sources.Next(&src, &n) {
		if atomic.LoadUint32(&g.states.at(src.Service).Parked) == 0 && g.objs.ParkedSources.Delete(src) == nil {
			removed++
		}
	}
	return removed, endOf(sources)
}

// parkedWell tells whether a release or refusal will find a parked SYN.
func (g *Gate) parkedWell(t gateTicket, p *gateParked) bool {
	if _, ok := g.addrOf(t.Service); !ok || g.behindTail(t) {
		return false
	}
	var pf gateParkedFlow
	err := g.objs.ParkedFlows.Lookup(p.Flow, &pf)
	if err != nil {
		return !errors.Is(err, ebpf.ErrKeyNotExist)
	}
	return pf.Ticket == t
}

// behindTail tells whether releases of a ticket's service begin after it.
func (g *Gate) behindTail(t gateTicket) bool {
	return int32(t.Number-atomic.LoadUint32(&g.states.at(t.Service).Tail)) < 0
}

// endOf returns why a walk through a map ended, other than by its end. A map that changes a lot cannot be walked
// through; there is a next time.
func endOf(it *ebpf.MapIterator) error {
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("walking through parked SYNs: %w", err)
	}
	return nil
}
