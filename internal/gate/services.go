// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/netip"
	"sync/atomic"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/sources"
)

// Service is the configuration of a service.
type Service struct {
	Addr               netip.AddrPort // service address (IPv4)
	MaxParked          uint32         // limit on parked SYNs; 0 refuses all
	MaxParkedPerSource uint32         // limit on parked SYNs from one client address
	Affinity           bool           // a client address keeps its pod
	PreferLocal        bool           // prefer pods on this node
	Retries            uint8          // limit on further pods to try after one did not take a SYN
	Proof              Proof          // when a client that wakes it must prove its source address
	Restricted         bool           // only sources allowed by the rules may connect
	Sources            []sources.Rule // the rules, if it is restricted
}

// flagBits returns the service's enum service_flag bits.
func (s *Service) flagBits() (flags uint32) {
	if s.Affinity {
		flags |= uint32(gateServiceFlagSERVICE_AFFINITY)
	}
	if s.PreferLocal {
		flags |= uint32(gateServiceFlagSERVICE_PREFER_LOCAL)
	}
	if s.Restricted {
		flags |= uint32(gateServiceFlagSERVICE_SOURCES)
	}
	switch s.Proof {
	case ProofAlways:
		flags |= uint32(gateServiceFlagSERVICE_PROOF_ALWAYS)
	case ProofNever:
		flags |= uint32(gateServiceFlagSERVICE_PROOF_NEVER)
	}
	return flags
}

// ServiceState decides what the gate does with a service's next SYN.
type ServiceState uint32

// The states of a service in the gate.
const (
	Cold   = ServiceState(gateServiceStateSERVICE_COLD)   // park it and send EventWake
	Waking = ServiceState(gateServiceStateSERVICE_WAKING) // park it
	Warm   = ServiceState(gateServiceStateSERVICE_WARM)   // send it to a pod
)

// ServiceCounters are a service's counts since it was added.
type ServiceCounters struct {
	Wakes      uint64 // EventWake sent
	Parked     uint64 // SYNs parked
	Duplicates uint64 // retransmissions of parked SYNs
	Overflows  uint64 // SYNs dropped because of a limit
	Refused    uint64 // parked SYNs answered with a RST
	Released   uint64 // parked SYNs sent on to a pod
	Denied     uint64 // SYNs dropped because the rules refuse their source
	ParkedNow  uint32 // SYNs parked at present
}

// adoptServices takes over the services that an earlier process has added.
func (g *Gate) adoptServices() error {
	t := &g.services
	t.indices, t.addrs, t.vips = map[netip.AddrPort]uint32{}, map[uint32]netip.AddrPort{}, map[netip.Addr]uint32{}
	if err := g.adoptAnnouncements(); err != nil {
		return err
	}
	inForce, left := map[uint32]bool{}, map[netip.AddrPort]uint32{}
	var k gateServiceKey
	var v gateService
	it := g.objs.Services.Iterate()
	for it.Next(&k, &v) {
		a := fromServiceKey(k)
		t.vips[a.Addr()]++
		if v.Flags&uint8(gateServiceFlagSERVICE_LEFT) != 0 {
			left[a] = v.Index
		} else {
			t.indices[a], t.addrs[v.Index] = v.Index, a
		}
		if set := g.filters.at(v.Index).Rules; set != 0 {
			inForce[set] = true
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("reading the gate's services: %w", err)
	}
	if err := g.adoptLeft(left); err != nil {
		return err
	}
	if err := g.adoptSources(inForce); err != nil {
		return err
	}
	t.pool.adopt(g.cfg.Sizes.Services, func(i uint32) bool { _, ok := t.addrs[i]; return ok })
	return nil
}

// SetService adds a service, cold, or changes its configuration. It returns the service's index. No client ever finds a
// service without its source rules: if they cannot be written, the service refuses all sources, and the log says so.
func (g *Gate) SetService(s Service) (uint32, error) {
	if !s.Addr.Addr().Is4() || s.Addr.Addr().IsUnspecified() {
		return 0, fmt.Errorf("service address %v: not an IPv4 address", s.Addr)
	}
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	index, known := t.indices[s.Addr]
	if !known {
		if err := g.endLeft(s.Addr); err != nil {
			return 0, fmt.Errorf("service address %v: another service has just left it: %w", s.Addr, err)
		}
		var ok bool
		if index, ok = t.pool.acquire(g.cfg.Sizes.Services); !ok {
			return 0, fmt.Errorf("service address %v: the gate has room for %d services: raise --services",
				s.Addr, g.cfg.Sizes.Services)
		}
		// Tickets continue where an earlier service with this index stopped, so that none is used twice. SYNs that the
		// earlier service has left behind count until Sweep removes them.
		st := g.statuses.at(index)
		*st = gateServiceStatus{Head: st.Head, Tail: st.Head, Parked: st.Parked}
		atomic.StoreUint32(&g.serviceShares.at(index).Open, 0)
		*g.filters.at(index) = gateSourceFilter{}
		g.doubts.forget(index)
	}
	unused := g.prepareSources(s, index)
	if err := g.writeService(s, index); err != nil {
		if !known {
			t.pool.put(index)
		}
		return 0, fmt.Errorf("service address %v: writing the gate's map: %w", s.Addr, err)
	}
	if !s.Restricted {
		atomic.StoreUint32(&g.filters.at(index).Rules, 0)
	}
	g.dropSources(unused)
	if g.statuses.at(index).setFlags(^waryFlags, s.flagBits()) {
		g.podTable.serving.Lock()
		err := g.updateMaglev(index)
		g.podTable.serving.Unlock()
		if err != nil {
			return 0, fmt.Errorf("service address %v: %w", s.Addr, err)
		}
	}
	if known {
		return index, nil
	}
	t.indices[s.Addr], t.addrs[index] = index, s.Addr
	if err := g.holdVIP(s.Addr.Addr()); err != nil {
		return 0, fmt.Errorf("service address %v: %w", s.Addr, err)
	}
	return index, nil
}

// writeService writes a service's configuration to the map.
func (g *Gate) writeService(s Service, index uint32) error {
	return g.objs.Services.Put(toServiceKey(s.Addr), gateService{
		Index:              index,
		MaxParked:          s.MaxParked,
		MaxParkedPerSource: s.MaxParkedPerSource,
		Flags:              uint8(s.flagBits()),
		Retries:            s.Retries,
	})
}

// RemoveService removes a service and answers the SYNs parked there with a RST. It forgets the addresses that the
// service has left. Its pods must be removed before.
func (g *Gate) RemoveService(a netip.AddrPort) error {
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	index, ok := t.indices[a]
	if !ok {
		return nil
	}
	for _, left := range t.leftBy(index) {
		if err := g.endLeft(left); err != nil {
			return fmt.Errorf("service address %v: removing it from the gate: %w", left, err)
		}
	}
	if err := ignoreMissing(g.objs.Services.Delete(toServiceKey(a))); err != nil {
		return fmt.Errorf("service address %v: removing it from the gate: %w", a, err)
	}
	if err := g.releaseVIP(a.Addr()); err != nil {
		return fmt.Errorf("service address %v: %w", a, err)
	}
	g.dropSources(g.filters.at(index).Rules)
	g.refuse(index)
	delete(t.indices, a)
	delete(t.addrs, index)
	t.pool.put(index)
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

// ServiceState returns a service's state; Cold for an unknown service.
func (g *Gate) ServiceState(a netip.AddrPort) ServiceState {
	i, ok := g.services.index(a)
	if !ok {
		return Cold
	}
	return ServiceState(serviceState(g.statuses.at(i)))
}

// SYNSeen returns when the SYN that started the service's latest wake was parked.
func (g *Gate) SYNSeen(a netip.AddrPort) monotime.Time {
	i, ok := g.services.index(a)
	if !ok {
		return 0
	}
	return monotime.Time(atomic.LoadUint64(&g.statuses.at(i).SynSeen))
}

// ServiceCounters returns a service's counts; zeros for an unknown service.
func (g *Gate) ServiceCounters(a netip.AddrPort) ServiceCounters {
	i, ok := g.services.index(a)
	if !ok {
		return ServiceCounters{}
	}
	st := g.statuses.at(i)
	return ServiceCounters{
		Wakes:      atomic.LoadUint64(&st.Wakes),
		Parked:     atomic.LoadUint64(&st.ParkedTotal),
		Duplicates: atomic.LoadUint64(&st.Duplicates),
		Overflows:  atomic.LoadUint64(&st.Overflows),
		Refused:    atomic.LoadUint64(&st.Refused),
		Released:   atomic.LoadUint64(&st.Released),
		Denied:     atomic.LoadUint64(&g.filters.at(i).Denied),
		ParkedNow:  atomic.LoadUint32(&st.Parked),
	}
}

// Pending returns the services that have parked SYNs and are not warm. A daemon that starts must wake them, because the
// events went to an earlier one.
func (g *Gate) Pending() []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range g.Services() {
		if g.ServiceState(a) != Warm && g.ServiceCounters(a).ParkedNow > 0 {
			out = append(out, a)
		}
	}
	return out
}
