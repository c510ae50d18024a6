// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"wangell.loutres.me/internal/monotime"
)

// Service is what the gate knows of a service.
type Service struct {
	Addr               netip.AddrPort
	MaxParked          uint32
	MaxParkedPerSource uint32
	Affinity           bool  // a client address keeps its pod
	PreferLocal        bool  // pods on this machine come first
	Retries            uint8 // other pods that a SYN is given to at most, after one that did not take it
}

// SERVICE_ bits of bpf/types.h.
const (
	serviceAffinity    = 1
	servicePreferLocal = 2
)

// ServiceCounters are a service's counts since the gate knows it.
type ServiceCounters struct {
	Wakes      uint64 // wake events
	Parked     uint64 // SYNs parked
	Duplicates uint64 // retransmissions of parked SYNs
	Overflows  uint64 // SYNs dropped because of a limit
	Refused    uint64 // clients told with an RST
	Released   uint64 // SYNs let go to a pod
	ParkedNow  uint32 // SYNs parked at present
}

// serviceTable keeps which service has which index.
type serviceTable struct {
	mu      sync.Mutex
	indices map[netip.AddrPort]uint32
	addrs   map[uint32]netip.AddrPort
	free    []uint32 // indices that were used and are free
	next    uint32   // indices from here on were never used
	vips    map[netip.Addr]uint32

	announced announcements
}

// adopt learns from the maps what an earlier process put there.
func (t *serviceTable) adopt(g *Gate) error {
	t.indices, t.addrs, t.vips = map[netip.AddrPort]uint32{}, map[uint32]netip.AddrPort{}, map[netip.Addr]uint32{}
	t.announced.vips = map[netip.Addr]bool{}
	if t.announced.all = g.cfg.EncapPort == 0; !t.announced.all {
		var vip gateAddr
		var flags uint32
		it := g.objs.Addresses.Iterate()
		for it.Next(&vip, &flags) {
			if flags&addressAnnounced != 0 {
				t.announced.vips[fromAddr(vip)] = true
			}
		}
		if err := it.Err(); err != nil {
			return fmt.Errorf("reading the gate's VIPs: %w", err)
		}
	}
	var k gateServiceKey
	var v gateService
	it := g.objs.Services.Iterate()
	for it.Next(&k, &v) {
		a := fromServiceKey(k)
		t.indices[a], t.addrs[v.Index] = v.Index, a
		t.vips[a.Addr()]++
		t.next = max(t.next, v.Index+1)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("reading the gate's services: %w", err)
	}
	for i := range t.next {
		if _, ok := t.addrs[i]; !ok {
			t.free = append(t.free, i)
		}
	}
	return nil
}

// take finds a free index.
func (t *serviceTable) take(limit uint32) (uint32, bool) {
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		return i, true
	}
	if t.next >= limit {
		return 0, false
	}
	t.next++
	return t.next - 1, true
}

// SetService adds a service, cold, or changes its limits. It returns the service's index.
func (g *Gate) SetService(s Service) (uint32, error) {
	if !s.Addr.Addr().Is4() || s.Addr.Addr().IsUnspecified() {
		return 0, fmt.Errorf("service address %v: not an IPv4 address", s.Addr)
	}
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	index, known := t.indices[s.Addr]
	if !known {
		var ok bool
		if index, ok = t.take(g.cfg.Sizes.Services); !ok {
			return 0, fmt.Errorf("service address %v: the gate has room for %d services", s.Addr, g.cfg.Sizes.Services)
		}
		// What an earlier service of this index left: tickets go on, so that none is given twice, and what is
		// parked is counted until Sweep removes it.
		st := g.states.at(index)
		*st = gateServiceState{Head: st.Head, Tail: st.Head, Parked: st.Parked}
	}
	v := gateService{Index: index, MaxParked: s.MaxParked, MaxParkedPerSource: s.MaxParkedPerSource, Retries: s.Retries}
	if s.Affinity {
		v.Flags |= serviceAffinity
	}
	if s.PreferLocal {
		v.Flags |= servicePreferLocal
	}
	if err := g.objs.Services.Put(toServiceKey(s.Addr), v); err != nil {
		if !known {
			t.free = append(t.free, index)
		}
		return 0, fmt.Errorf("service address %v: telling the gate: %w", s.Addr, err)
	}
	if st := g.states.at(index); atomic.SwapUint32(&st.Flags, uint32(v.Flags)) != uint32(v.Flags) {
		g.podTable.serving.Lock()
		err := g.hashPods(index)
		g.podTable.serving.Unlock()
		if err != nil {
			return 0, fmt.Errorf("service address %v: %w", s.Addr, err)
		}
	}
	if known {
		return index, nil
	}
	t.indices[s.Addr], t.addrs[index] = index, s.Addr
	vip := s.Addr.Addr()
	t.vips[vip]++
	if t.vips[vip] > 1 {
		return index, nil
	}
	if err := g.addVIP(vip); err != nil {
		return 0, fmt.Errorf("service address %v: telling the gate its VIP: %w", s.Addr, err)
	}
	return index, nil
}

// RemoveService forgets a service and refuses the clients that are parked there. Its pods are to be removed before.
func (g *Gate) RemoveService(a netip.AddrPort) error {
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	index, ok := t.indices[a]
	if !ok {
		return nil
	}
	if err := g.objs.Services.Delete(toServiceKey(a)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("service address %v: removing it from the gate: %w", a, err)
	}
	vip := a.Addr()
	if t.vips[vip]--; t.vips[vip] == 0 {
		delete(t.vips, vip)
		if err := g.removeVIP(vip); err != nil {
			return fmt.Errorf("service address %v: removing its VIP from the gate: %w", a, err)
		}
	}
	g.refuse(index)
	delete(t.indices, a)
	delete(t.addrs, index)
	t.free = append(t.free, index)
	return nil
}

// Services returns the addresses of all services.
func (g *Gate) Services() []netip.AddrPort {
	g.services.mu.Lock()
	defer g.services.mu.Unlock()
	out := make([]netip.AddrPort, 0, len(g.services.indices))
	for a := range g.services.indices {
		out = append(out, a)
	}
	return out
}

// index finds a service.
func (g *Gate) index(a netip.AddrPort) (uint32, bool) {
	g.services.mu.Lock()
	defer g.services.mu.Unlock()
	i, ok := g.services.indices[a]
	return i, ok
}

// addrOf finds a service by its index.
func (g *Gate) addrOf(index uint32) (netip.AddrPort, bool) {
	g.services.mu.Lock()
	defer g.services.mu.Unlock()
	a, ok := g.services.addrs[index]
	return a, ok
}

// Phase is what the gate does with a new SYN of a service.
type Phase uint32

// The phases of a service in the gate.
const (
	Cold   = Phase(gatePhasePHASE_COLD)   // park it and send a wake event
	Waking = Phase(gatePhasePHASE_WAKING) // park it
	Warm   = Phase(gatePhasePHASE_WARM)   // give it to a pod
)

// Phase returns a service's phase; Cold for a service that is not known.
func (g *Gate) Phase(a netip.AddrPort) Phase {
	i, ok := g.index(a)
	if !ok {
		return Cold
	}
	return Phase(g.phase(i))
}

func (g *Gate) phase(index uint32) gatePhase {
	return gatePhase(atomic.LoadUint32((*uint32)(&g.states.at(index).Phase)))
}

func (g *Gate) setPhase(index uint32, p gatePhase) {
	atomic.StoreUint32((*uint32)(&g.states.at(index).Phase), uint32(p))
}

// SYNSeen returns when the SYN that began the present or last wake was parked.
func (g *Gate) SYNSeen(a netip.AddrPort) monotime.Time {
	i, ok := g.index(a)
	if !ok {
		return 0
	}
	return monotime.Time(atomic.LoadUint64(&g.states.at(i).SynSeen))
}

// ServiceCounters returns a service's counts.
func (g *Gate) ServiceCounters(a netip.AddrPort) ServiceCounters {
	i, ok := g.index(a)
	if !ok {
		return ServiceCounters{}
	}
	st := g.states.at(i)
	return ServiceCounters{
		Wakes:      atomic.LoadUint64(&st.Wakes),
		Parked:     atomic.LoadUint64(&st.ParkedTotal),
		Duplicates: atomic.LoadUint64(&st.Duplicates),
		Overflows:  atomic.LoadUint64(&st.Overflows),
		Refused:    atomic.LoadUint64(&st.Refused),
		Released:   atomic.LoadUint64(&st.Released),
		ParkedNow:  atomic.LoadUint32(&st.Parked),
	}
}
