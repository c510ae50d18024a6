// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"wangell.loutres.me/internal/base/monotime"
)

// maxLeft bounds the number of a service's former addresses whose flows go on. With one more, the flows at the oldest
// one end.
const maxLeft = int(gateLimitMAX_LEFT) - 1

// MoveService gives a service another address. It keeps its pods, counts and configuration. Parked SYNs and any further
// ones at the old address get a RST. Open flows there go on and count for the same pods until EndLeft, which the caller
// must call at the given time. A later process gets the time from Left.
//
// The new address must belong to no other service, and no other service may have left it.
func (g *Gate) MoveService(from, to netip.AddrPort, until monotime.Time) error {
	if err := g.moveService(from, to, until); err != nil {
		return fmt.Errorf("service address %v: changing it to %v: %w", from, to, err)
	}
	return nil
}

func (g *Gate) moveService(from, to netip.AddrPort, until monotime.Time) error {
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	index, ok := t.indices[from]
	if !ok {
		return errors.New("not known to the gate")
	}
	back, returns := t.left[to]
	if _, taken := t.indices[to]; taken || returns && back.service != index {
		return errors.New("the new address is that of another service")
	}
	others := slices.DeleteFunc(t.leftBy(index), func(a netip.AddrPort) bool { return a == to })
	if len(others) >= maxLeft {
		if _, err := g.EndFlows(others[0]); err != nil {
			return err
		}
		if err := g.endLeft(others[0]); err != nil {
			return err
		}
	}
	var config gateService
	if err := g.objs.Services.Lookup(toServiceKey(from), &config); err != nil {
		return fmt.Errorf("reading the gate's map: %w", err)
	}
	if !returns {
		if err := g.holdVIP(to.Addr()); err != nil {
			return errors.Join(err, g.releaseVIP(to.Addr()))
		}
	}
	t.left[from] = leftAddress{index, until}
	if err := g.writeMove(index, from, to, config); err != nil {
		delete(t.left, from)
		errs := []error{err, g.movePods(to, from), g.objs.Services.Put(toServiceKey(from), config), g.writeLeft(index)}
		if !returns {
			errs = append(errs, g.releaseVIP(to.Addr()))
		}
		return errors.Join(errs...)
	}
	delete(t.indices, from)
	t.indices[to], t.addrs[index] = index, to
	if !returns {
		return nil
	}
	delete(t.left, to)
	return g.writeLeft(index)
}

// writeMove writes a service's change of address to the maps. config is its configuration. The caller holds
// services.mu.
func (g *Gate) writeMove(index uint32, from, to netip.AddrPort, config gateService) error {
	left := config
	left.Flags |= uint8(gateServiceFlagSERVICE_LEFT)
	if err := g.objs.Services.Put(toServiceKey(from), left); err != nil {
		return fmt.Errorf("writing the gate's map: %w", err)
	}
	if serviceState(g.statuses.at(index)) != gateServiceStateSERVICE_WARM {
		g.refuse(index)
	}
	// From here on, the programs match the pods' replies at both addresses, whichever of them pod.vip has meanwhile.
	if err := g.writeLeft(index); err != nil {
		return err
	}
	if err := g.movePods(from, to); err != nil {
		return err
	}
	if err := g.objs.Services.Put(toServiceKey(to), config); err != nil {
		return fmt.Errorf("writing the gate's map: %w", err)
	}
	return nil
}

// movePods gives the pods of a service its new address as well.
func (g *Gate) movePods(from, to netip.AddrPort) error {
	t := &g.podTable
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for id, i := range t.services[from] {
		p := g.pods.at(i)
		p.Moved = 1
		p.setVIP(to)
		errs = append(errs, g.objs.PodNames.Put(gatePodName{Id: id, Vip: toServiceKey(to)}, i))
	}
	if pods := t.services[from]; pods != nil {
		delete(t.services, from)
		t.services[to] = pods
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("writing the names of its pods to the gate's map: %w", err)
	}
	return nil
}

// LeftAddress is a former address of a service.
type LeftAddress struct {
	Addr  netip.AddrPort
	Until monotime.Time // when its flows must end; zero if an earlier process did not record it
}

// Left returns the addresses that a service has left and whose flows go on.
func (g *Gate) Left(service netip.AddrPort) (out []LeftAddress) {
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	index, ok := t.indices[service]
	if !ok {
		return nil
	}
	for _, a := range t.leftBy(index) {
		out = append(out, LeftAddress{a, t.left[a].until})
	}
	return out
}

// EndLeft ends the flows at an address that its service has left, as EndFlows does, and forgets the address. It does
// nothing if no service has left the address.
func (g *Gate) EndLeft(a netip.AddrPort) error {
	if _, err := g.EndFlows(a); err != nil {
		return err
	}
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := g.endLeft(a); err != nil {
		return fmt.Errorf("service address %v: forgetting it: %w", a, err)
	}
	return nil
}

// endLeft forgets an address that its service has left. Its flows must have ended. The caller holds services.mu.
func (g *Gate) endLeft(a netip.AddrPort) error {
	t := &g.services
	l, ok := t.left[a]
	if !ok {
		return nil
	}
	delete(t.left, a)
	errs := []error{ignoreMissing(g.objs.Services.Delete(toServiceKey(a)))}
	last := len(t.leftBy(l.service)) == 0
	pods := &g.podTable
	pods.mu.Lock()
	for id, i := range pods.services[t.addrs[l.service]] {
		errs = append(errs, ignoreMissing(g.objs.PodNames.Delete(gatePodName{Id: id, Vip: toServiceKey(a)})))
		if last {
			g.pods.at(i).Moved = 0
		}
	}
	pods.mu.Unlock()
	return errors.Join(append(errs, g.writeLeft(l.service), g.releaseVIP(a.Addr()))...)
}

// leftBy returns the addresses that a service has left, the earliest end first. The caller holds mu.
func (t *serviceTable) leftBy(service uint32) (out []netip.AddrPort) {
	for a, l := range t.left {
		if l.service == service {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b netip.AddrPort) int {
		if d := t.left[a].until.Sub(t.left[b].until); d != 0 {
			return int(d / max(d, -d))
		}
		return a.Compare(b)
	})
	return out
}

// allLeftBy is leftBy for a caller that does not hold mu.
func (t *serviceTable) allLeftBy(service uint32) []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leftBy(service)
}

// writeLeft writes the addresses that a service has left to the map. The caller holds services.mu.
func (g *Gate) writeLeft(service uint32) error {
	var list gateLeftList
	for _, a := range g.services.leftBy(service) {
		list.Address[list.N], list.Until[list.N] = toServiceKey(a), uint64(g.services.left[a].until)
		list.N++
	}
	var err error
	if list.N > 0 {
		err = g.objs.LeftAddresses.Put(service, list)
	} else {
		err = ignoreMissing(g.objs.LeftAddresses.Delete(service))
	}
	if err != nil {
		return fmt.Errorf("writing the addresses that it has left to the gate's map: %w", err)
	}
	return nil
}

// adoptLeft takes over the addresses that services have left. If a service has no other address, because the earlier
// process was killed, the address is the service's again.
func (g *Gate) adoptLeft(left map[netip.AddrPort]uint32) error {
	t := &g.services
	t.left = map[netip.AddrPort]leftAddress{}
	for a, index := range left {
		if _, has := t.addrs[index]; !has {
			t.indices[a], t.addrs[index] = index, a
			continue
		}
		l := leftAddress{service: index}
		var list gateLeftList
		if err := ignoreMissing(g.objs.LeftAddresses.Lookup(index, &list)); err != nil {
			return fmt.Errorf("reading the addresses that services have left: %w", err)
		}
		for i := range min(int(list.N), maxLeft) {
			if fromServiceKey(list.Address[i]) == a {
				l.until = monotime.Time(list.Until[i])
			}
		}
		t.left[a] = l
	}
	return nil
}
