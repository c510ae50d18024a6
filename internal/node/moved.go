// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

// left is a former address of a service. Connections there go on until the address ends. daemon.mu guards announce.
type left struct {
	service  *service
	announce bool          // a node answers ARP for the address
	over     chan struct{} // closed when it ends
}

// expectMove notes that the next step of the table gives a service another address.
func (d *daemon) expectMove(m *wire.Moved) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.moves[m.From] = m
}

// takeMoves returns the announced changes of address that a step of the table makes, by former address.
func (d *daemon) takeMoves(upserts []wire.Service, removals []netip.AddrPort) map[netip.AddrPort]*wire.Moved {
	d.mu.Lock()
	defer d.mu.Unlock()
	expected := d.moves
	d.moves = map[netip.AddrPort]*wire.Moved{}
	if len(expected) == 0 {
		return nil
	}
	names := make(map[netip.AddrPort]string, len(upserts))
	for _, u := range upserts {
		names[u.Addr] = u.Name
	}
	moves := map[netip.AddrPort]*wire.Moved{}
	for _, a := range removals {
		m, s := expected[a], d.services[a]
		if m != nil && s != nil && m.DrainMillis > 0 && names[m.To] == s.name {
			moves[a] = m
		}
	}
	return moves
}

// addressesInUse returns the address of a service and those that it has left, if it has pods.
func (d *daemon) addressesInUse(a netip.AddrPort) []netip.AddrPort {
	s := d.service(a)
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pods) == 0 {
		return nil // its connections ended with its pods
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return append(d.leftBy(s), a)
}

// changeAddress gives a service another address, or returns an error and changes nothing.
func (d *daemon) changeAddress(m *wire.Moved, drain time.Duration) error {
	s := d.service(m.From)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := d.gate.MoveService(m.From, m.To, monotime.Now().Add(drain)); err != nil {
		return err
	}
	d.alerts.forget(m.From, d.send)
	d.mu.Lock()
	l := &left{service: s, announce: s.announce, over: make(chan struct{})}
	s.announce = false
	if back := d.left[m.To]; back != nil { // it returns
		s.announce = back.announce
		close(back.over)
		delete(d.left, m.To)
	}
	delete(d.services, m.From)
	s.addr = m.To
	d.services[m.To], d.left[m.From] = s, l
	d.mu.Unlock()
	d.log.Info("a service has another address; its connections at the former one may go on",
		"service", s.name, "address", m.To, "former", m.From, "for", drain.String())
	d.endLater(m.From, l, drain)
	return nil
}

// endLater ends a former address after a pause.
func (d *daemon) endLater(a netip.AddrPort, l *left, after time.Duration) {
	d.tasks.Go(func() {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-d.ctx.Done():
			return
		case <-l.over:
			return
		case <-timer.C:
		}
		d.tableMu.Lock()
		defer d.tableMu.Unlock()
		select {
		case <-l.over:
		default:
			changed := map[netip.Addr]bool{}
			d.endLeft(a, changed)
			d.announceChanged(changed)
		}
	})
}

// endLeft ends a former address and its connections. It does nothing if the address is none. See setAnnounce for
// changed.
func (d *daemon) endLeft(a netip.AddrPort, changed map[netip.Addr]bool) {
	d.mu.Lock()
	l := d.left[a]
	if l != nil {
		close(l.over)
		delete(d.left, a)
		if l.announce {
			d.countVIP(a.Addr(), -1, changed)
		}
	}
	d.mu.Unlock()
	if l == nil {
		return
	}
	if err := d.gate.EndLeft(a); err != nil {
		d.log.Error("cannot end the connections at an address that its service has left", "address", a, "error", err)
	}
}

// adoptLeft takes over the addresses that a service has left.
func (d *daemon) adoptLeft(s *service) {
	for _, at := range d.gate.Left(s.addr) {
		l := &left{service: s, over: make(chan struct{})}
		d.left[at.Addr] = l
		d.endLater(at.Addr, l, at.Until.Sub(monotime.Now()))
	}
}
