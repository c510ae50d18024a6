// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// A service with several ports has a service of this package for each of them, because each is a service address of the
// gate: with its own parked SYNs, flows and balancing. Their pods are the same, so they form a group: one lock, one
// readiness, one idle time, and one freeze. The controller names the group by the address of its first port.

// group is the services of this package that are the ports of one service, in the order of the table.
type group struct{ ports []*service }

// groupMutex is a mutex that the members of a group share. The zero value is unlocked, and shared with nobody.
type groupMutex struct{ shared atomic.Pointer[sync.Mutex] }

// Lock locks the mutex, for all that share it.
func (m *groupMutex) Lock() {
	for {
		mu := m.own()
		mu.Lock()
		if m.shared.Load() == mu {
			return
		}
		mu.Unlock() // it has joined others meanwhile
	}
}

// Unlock unlocks the mutex.
func (m *groupMutex) Unlock() { m.shared.Load().Unlock() }

func (m *groupMutex) own() *sync.Mutex {
	if m.shared.Load() == nil {
		m.shared.CompareAndSwap(nil, &sync.Mutex{})
	}
	return m.shared.Load()
}

// join makes m share the mutex of other. Neither is locked by the caller.
func (m *groupMutex) join(other *groupMutex) {
	mu := m.own()
	mu.Lock()
	defer mu.Unlock()
	if to := other.own(); to != mu {
		m.shared.Store(to)
	}
}

// ports returns the ports of the service that s is a port of. s.mu is held.
func (s *service) ports() []*service {
	if s.group == nil {
		return []*service{s}
	}
	return s.group.ports
}

// first returns the first port of the service that s is a port of. s.mu is held.
func (s *service) first() *service { return s.ports()[0] }

// further reports whether s is a port of a service, but not the first one. s.mu is held.
func (s *service) further() bool { return s.first() != s }

// open reports whether a pod serves at any port of the service, and since when at the one that opened last. s.mu is
// held.
func (s *service) open(id uint64) (serving bool, since monotime.Time) {
	for _, port := range s.ports() {
		if p := port.pods[id]; p != nil {
			serving = serving || p.serving
			since = max(since, p.since)
		}
	}
	return serving, since
}

// serves reports whether a pod serves at any port of the service. s.mu is held.
func (s *service) serves(id uint64) bool {
	serving, _ := s.open(id)
	return serving
}

// isToServe reports whether the controller wants a pod to serve, at any port of the service. s.mu is held.
func (s *service) isToServe(id uint64) bool {
	return slices.ContainsFunc(s.ports(), func(port *service) bool {
		p := port.pods[id]
		return p != nil && p.state == wire.PodServing
	})
}

// podCounters returns the counters of a pod at all ports of its service together. s.mu is held.
func (d *daemon) podCounters(s *service, id uint64) (gate.PodCounters, error) {
	sum, err := d.gate.PodCounters(s.addr, id)
	if s.group == nil {
		return sum, err
	}
	for _, port := range s.ports() {
		if port == s || port.pods[id] == nil {
			continue
		}
		if c, err := d.gate.PodCounters(port.addr, id); err == nil {
			sum.Add(c)
		}
	}
	return sum, err
}

// openFlows returns the number of flows of a pod at all ports of its service; ok is false for an unknown pod. s.mu is
// held.
func (d *daemon) openFlows(s *service, id uint64) (open uint32, ok bool) {
	for _, port := range s.ports() {
		n, known := d.gate.OpenFlows(port.addr, id)
		open, ok = open+n, ok || known
	}
	return open, ok
}

// setFrozen tells the gate that a pod is about to be frozen, at all ports of its service, or was thawed.
func (d *daemon) setFrozen(q *frozenPod, frozen bool) error {
	var errs []error
	for _, a := range q.addrs() {
		errs = append(errs, d.gate.SetFrozen(a, q.id, frozen))
	}
	return errors.Join(errs...)
}

// lastAsked returns when a packet last needed a pod's program, at any port of its service.
func (d *daemon) lastAsked(q *frozenPod) (monotime.Time, error) {
	q.service.mu.Lock()
	defer q.service.mu.Unlock()
	c, err := d.podCounters(q.service.first(), q.id)
	return c.LastAsked, err
}

// flatten returns an entry for each port of services of the table. Those of further ports have no ports themselves.
func flatten(table []wire.Service) []wire.Service {
	flat := make([]wire.Service, 0, len(table))
	for _, u := range table {
		flat = append(flat, u)
		for _, p := range u.Ports.List() {
			flat = append(flat, portEntry(u, p))
		}
	}
	return flat
}

// portEntry is the entry of a further port of a service.
func portEntry(u wire.Service, p wire.Port) wire.Service {
	u.Addr = netip.AddrPortFrom(u.Addr.Addr(), p.Number)
	// The address is announced, and the usage reported, for the first port.
	u.Flags &^= wire.FlagAnnounce | wire.FlagUsage | wire.FlagRequests | wire.FlagSources
	if p.Restricted {
		u.Flags |= wire.FlagSources
	}
	u.Sources, u.Requests, u.Ports = p.Sources, wire.Requests{}, wire.Ports{}
	return u
}

// removedPorts returns the addresses that a step of the table removes: those in removals, those of further ports of
// removed services, and those of ports that changed services do not have any more. flat has the entries of the step.
// The address of a removed entry stays if it is in flat: the service has another first port then.
func (d *daemon) removedPorts(upserts, flat []wire.Service, removals []netip.AddrPort) []netip.AddrPort {
	seen := make(map[netip.AddrPort]bool, len(flat)+len(removals))
	for i := range flat {
		seen[flat[i].Addr] = true
	}
	var removed []netip.AddrPort
	remove := func(a netip.AddrPort) {
		if !seen[a] {
			seen[a] = true
			removed = append(removed, a)
		}
	}
	removeOthers := func(first netip.AddrPort) {
		d.mu.Lock()
		s := d.services[first]
		d.mu.Unlock()
		if s == nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.group != nil {
			for _, port := range s.group.ports {
				remove(port.addr)
			}
		}
	}
	for _, a := range removals {
		remove(a)
		removeOthers(a)
	}
	for i := range upserts {
		removeOthers(upserts[i].Addr)
	}
	return removed
}

// link makes the services at the addresses of a table entry's ports a group.
func (d *daemon) link(u *wire.Service) {
	addrs := []netip.AddrPort{u.Addr}
	for _, p := range u.Ports.List() {
		addrs = append(addrs, netip.AddrPortFrom(u.Addr.Addr(), p.Number))
	}
	d.mu.Lock()
	ports := make([]*service, 0, len(addrs))
	for _, a := range addrs {
		if s := d.services[a]; s != nil {
			ports = append(ports, s)
		}
	}
	d.mu.Unlock()
	if len(ports) < len(addrs) || len(ports) == 1 && ports[0].group == nil {
		return // the gate has no room for one of them, which was logged
	}
	first := ports[0]
	for _, s := range ports[1:] {
		s.mu.join(&first.mu)
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	g := &group{ports}
	if len(ports) == 1 {
		g = nil
	}
	for i, s := range ports {
		if s.group == nil && i > 0 {
			d.countPods(-len(s.pods)) // they are those of the first port
		}
		s.group = g
		d.noteShared(s)
	}
}

// countPods changes the number of pods of all services.
func (d *daemon) countPods(by int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pods += by
}

// atPort returns the part of a message about the pods of a service that is about one of its ports, counted from 0.
func atPort(m *wire.Backends, port int) *wire.Backends {
	if len(m.Targets) == 0 {
		return m
	}
	out := *m
	out.Pods, out.Targets = nil, nil
	for i, b := range m.Pods {
		if port > 0 {
			if port > len(m.Targets[i]) || m.Targets[i][port-1] == 0 {
				continue
			}
			b.Addr = netip.AddrPortFrom(b.Addr.Addr(), m.Targets[i][port-1])
			b.Probe, b.Runtime = "", ""
		}
		if b.State == wire.PodServing && b.Open&(1<<port) == 0 {
			b.State = wire.PodStarting
		}
		out.Pods = append(out.Pods, b)
	}
	return &out
}
