// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"time"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// setServices applies a step of the table of services. full reports that upserts is the whole table.
func (d *daemon) setServices(full bool, upserts []wire.Service, removals []netip.AddrPort) {
	d.tableMu.Lock()
	defer d.tableMu.Unlock()
	flat := flatten(upserts)
	if full {
		removals = append(removals, d.servicesExcept(flat)...)
	}
	removals = d.removedPorts(upserts, flat, removals)
	changed := map[netip.Addr]bool{} // VIPs
	moves := d.takeMoves(flat, removals)
	d.endReplaced(flat, removals, moves, changed)
	for _, m := range moves {
		d.move(m, changed)
	}
	for _, u := range flat {
		if err := d.setService(u, changed); err != nil {
			d.log.Error("cannot serve a service", "service", u.Name, "address", u.Addr, "error", err)
		}
	}
	for i := range upserts {
		d.link(&upserts[i])
	}
	if !full {
		d.announceChanged(changed)
	} else {
		d.announceAll()
		d.wakePending()
	}
	if d.checkScarce(time.Now()) {
		notify(d.maintenance)
	}
	d.ready.Do(func() {
		close(d.tabled)
		d.fronts.notify() // it may have looked before that
		if d.cfg.Ready != nil {
			d.cfg.Ready()
		}
	})
}

// wakePending asks to wake all services with parked SYNs: the wake event may have gone to an earlier daemon, or the
// WAKE message to an earlier controller.
func (d *daemon) wakePending() {
	for _, a := range d.gate.Pending() {
		d.wake(a, d.gate.SYNSeen(a))
	}
}

// servicesExcept returns the addresses of known services that are missing in a table.
func (d *daemon) servicesExcept(table []wire.Service) (others []netip.AddrPort) {
	listed := make(map[netip.AddrPort]bool, len(table))
	for _, s := range table {
		listed[s.Addr] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for a := range d.services {
		if !listed[a] {
			others = append(others, a)
		}
	}
	return others
}

// setService adds or changes a service. See setAnnounce for changed.
func (d *daemon) setService(u wire.Service, changed map[netip.Addr]bool) error {
	if err := d.writeService(u); err != nil {
		return err
	}
	d.mu.Lock()
	s := d.services[u.Addr]
	if s == nil {
		s = &service{addr: u.Addr}
		d.services[u.Addr] = s
	}
	d.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entry = u
	s.name, s.idle = u.Name, time.Duration(u.IdleSeconds)*time.Second
	s.freezeAfter = time.Duration(u.FreezeSeconds) * time.Second
	d.setAnnounce(s, u.Flags&wire.FlagAnnounce != 0, changed)
	s.usage = u.Flags&wire.FlagUsage != 0
	s.requests = nil
	if u.Flags&wire.FlagRequests != 0 {
		s.requests = &u.Requests
	}
	if !s.splits() {
		s.router = revisionRouter{}
	}
	for _, f := range []*front{&s.front, &s.oldFront} {
		if f.serving && f.only != s.splits() {
			d.drainFront(s, f) // it is to take clients in another way
		}
	}
	d.reachFronts(s)
	d.fronts.notify()
	return nil
}

// removeService removes a service with its pods. See setAnnounce for changed.
func (d *daemon) removeService(a netip.AddrPort, changed map[netip.Addr]bool) {
	d.mu.Lock()
	s := d.services[a]
	delete(d.services, a)
	former := d.leftBy(s)
	d.mu.Unlock()
	if s == nil {
		return
	}
	for _, a := range former {
		d.endLeft(a, changed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		d.removePod(s, p)
	}
	s.requests = nil // for configureFronts, which may have listed the service already
	d.removeFronts(s)
	d.leaveFronts(s, nil)
	d.fronts.notify()
	d.noteShared(s)
	d.setAnnounce(s, false, changed)
	d.alerts.forget(a, d.send)
	if err := d.gate.RemoveService(a); err != nil {
		d.log.Error("cannot remove a service", "service", s.name, "address", a, "error", err)
	}
}

// endReplaced ends the services that a step of the table displaces: services at removed addresses, unless they move,
// and services whose address goes to another one. Their open connections get a RST, including those at former
// addresses. See setAnnounce for changed.
func (d *daemon) endReplaced(upserts []wire.Service, removals []netip.AddrPort, moves map[netip.AddrPort]*wire.Moved,
	changed map[netip.Addr]bool) {
	var gone, flows []netip.AddrPort
	for _, a := range removals {
		if moves[a] == nil {
			gone = append(gone, a)
		}
	}
	returns := map[netip.AddrPort]bool{}
	for _, m := range moves {
		returns[m.To] = true
	}
	d.mu.Lock()
	for _, u := range upserts {
		if s := d.services[u.Addr]; s != nil && s.name != "" && s.name != u.Name {
			gone = append(gone, u.Addr)
		}
		if d.left[u.Addr] != nil && !returns[u.Addr] {
			flows = append(flows, u.Addr)
		}
	}
	d.mu.Unlock()
	for _, a := range gone {
		flows = append(flows, d.addressesInUse(a)...)
	}
	if len(flows) > 0 {
		if n, err := d.gate.EndFlows(flows...); err != nil {
			d.log.Error("cannot end the connections of addresses that are removed", "ended", n, "error", err)
		}
	}
	for _, a := range flows {
		d.endLeft(a, changed)
	}
	for _, a := range gone {
		d.removeService(a, changed)
	}
}

// move gives a service another address. Connections at the former address go on for a while. See setAnnounce for
// changed.
func (d *daemon) move(m *wire.Moved, changed map[netip.Addr]bool) {
	drain := time.Duration(m.DrainMillis) * time.Millisecond
	if err := d.changeAddress(m, drain); err != nil {
		d.log.Error("connections at the former address of a service end", "error", err)
		d.endReplaced(nil, []netip.AddrPort{m.From}, nil, changed)
	}
}

// writeService writes a service's configuration to the gate.
func (d *daemon) writeService(u wire.Service) error {
	proof := gate.ProofAuto
	switch {
	case u.Flags&wire.FlagProofAlways != 0:
		proof = gate.ProofAlways
	case u.Flags&wire.FlagProofNever != 0:
		proof = gate.ProofNever
	}
	_, err := d.gate.SetService(gate.Service{
		Addr: u.Addr, MaxParked: uint32(u.MaxParked), MaxParkedPerSource: uint32(u.MaxParkedPerSource),
		Affinity: u.Flags&wire.FlagAffinity != 0, PreferLocal: u.Flags&wire.FlagPreferLocal != 0, Retries: u.Retries,
		Proof: proof, Restricted: u.Flags&wire.FlagSources != 0, Sources: d.fronts.allow(u),
	})
	return err
}
