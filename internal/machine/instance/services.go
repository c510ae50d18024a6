// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
)

// keeper is the part of the controller that services uses.
type keeper interface {
	Update(put []controller.Service, remove []v1alpha1.Key) error
	Synced(context.Context) error
}

// services gives the controller the services of this machine, with addresses from a range.
type services struct {
	keeper  keeper
	log     *slog.Logger
	dir     string // the state folder, for the book
	book    addressBook
	applied []v1alpha1.Key
	// publish announces the addresses of services, all addresses in use, and the services at the machine's ports.
	publish func(publication)
	ports   hostPorts
	// published is what was made known last.
	published publication
	// waiting has a value when services begin to wait for ports that other programs have.
	waiting chan struct{}
	// former are addresses of services that moved. Open connections go on there for a while.
	former map[v1alpha1.Key][]netip.Addr
	// history stores the histories of services; nil for none.
	history *histories
	// volumes removes volumes with their service; nil if there are none.
	volumes *volumes

	mu       sync.Mutex // held while services are applied; guards what follows
	rollouts *rollouts
	given    []*v1alpha1.WangellService // as their manifests have them
}

// publication is what is made known of services.
type publication struct {
	services map[v1alpha1.Key]netip.Addr
	lead     []netip.Addr // all addresses in use, including the former ones of services that moved
	// ports are the services at ports of the machine; at the address 0.0.0.0, at all its addresses.
	ports map[netip.AddrPort]netip.AddrPort
}

// newServices returns an empty set of services. Addresses assigned earlier from the range are kept in the state
// folder dir.
func newServices(k keeper, log *slog.Logger, dir string, addresses netip.Prefix,
	publish func(publication)) (*services, error) {
	book, err := loadAddresses(dir, addresses)
	if err != nil {
		return nil, err
	}
	moved, err := loadRollouts(dir)
	if err != nil {
		return nil, err
	}
	return &services{
		waiting: make(chan struct{}, 1), keeper: k, log: log, dir: dir, book: book, publish: publish, rollouts: moved,
		ports: hostPorts{held: map[netip.AddrPort]net.Listener{}}, former: map[v1alpha1.Key][]netip.Addr{},
	}, nil
}

// apply makes the services the given ones, which must have been validated: new ones are added, and those that are not
// in the list are removed with their pods, and with the volumes that they do not retain. On an error nothing is
// changed. The first apply also adopts the running pods that fit, and stops all others.
//
// It returns once daemons are being informed; images are fetched and pods replaced afterwards.
func (a *services) apply(ctx context.Context, list []*v1alpha1.WangellService) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.given
	a.given = list
	if err := a.applyGiven(ctx); err != nil {
		a.given = before
		return err
	}
	if a.rollouts.forget(list) {
		return a.rollouts.save()
	}
	return nil
}

// applyGiven is apply for the services in a.given. a.mu is held.
func (a *services) applyGiven(ctx context.Context) error {
	list := a.rollouts.over(a.given)
	keys := make([]v1alpha1.Key, 0, len(list))
	wanted := make(map[v1alpha1.Key]bool, len(list))
	for _, s := range list {
		k := v1alpha1.KeyOf(s)
		if wanted[k] {
			return fmt.Errorf("service %s: given twice: remove one", k)
		}
		wanted[k] = true
		keys = append(keys, k)
	}
	book, err := a.book.assign(list)
	if err != nil {
		return err
	}
	commit, rollback, err := a.ports.take(list)
	if err != nil {
		return err
	}
	if !book.equal(a.book) {
		if err := book.save(a.dir); err != nil {
			rollback()
			return err
		}
	}
	put := make([]controller.Service, 0, len(list))
	for i, s := range list {
		put = append(put, controller.Service{Spec: s, Addr: book.given[keys[i]], Announce: true,
			History: a.history.of(keys[i])})
	}
	remove := slices.DeleteFunc(slices.Clone(a.applied), func(k v1alpha1.Key) bool { return wanted[k] })
	if err := a.keeper.Update(put, remove); err != nil {
		rollback()
		return err
	}
	busy := commit()
	p := publication{ports: map[netip.AddrPort]netip.AddrPort{}}
	p.services, p.lead = a.addresses(keys, book)
	for i, s := range list {
		for _, port := range s.Spec.PortList() {
			if _, waits := busy[port.Host]; port.Host.IsValid() && !waits {
				p.ports[port.Host] = netip.AddrPortFrom(book.given[keys[i]], uint16(port.Number))
			}
		}
	}
	a.book, a.applied = book, keys
	a.published = p
	a.publish(p)
	a.tellBusy(busy)
	a.volumes.follow(ctx, list)
	a.history.follow(list)
	if len(list) == 0 {
		a.log.Warn("0 services: no manifest is in the files and folders of -f. One that is added is applied at once")
	}
	return a.keeper.Synced(ctx)
}

// tellBusy logs which services wait for their ports, and begins to try again.
func (a *services) tellBusy(busy map[netip.AddrPort]waitPort) {
	for _, w := range busy {
		a.log.Warn("a service is not at its port of the machine", "service", string(w.service), "reason", w.why)
	}
	if len(busy) > 0 {
		select {
		case a.waiting <- struct{}{}:
		default:
		}
	}
}

// addresses returns the addresses of services, and all addresses in use, including former ones.
func (a *services) addresses(keys []v1alpha1.Key, book addressBook) (map[v1alpha1.Key]netip.Addr, []netip.Addr) {
	addrs := make(map[v1alpha1.Key]netip.Addr, len(keys))
	former := map[v1alpha1.Key][]netip.Addr{}
	lead := map[netip.Addr]bool{}
	for _, k := range keys {
		addr := book.given[k]
		addrs[k], lead[addr] = addr, true
		former[k] = a.former[k]
		if before, ok := a.book.given[k]; ok && before != addr && slices.Contains(a.applied, k) {
			former[k] = append(slices.Clone(former[k]), before)
		}
		for _, f := range former[k] {
			lead[f] = true
		}
	}
	a.former = former
	return addrs, slices.SortedFunc(maps.Keys(lead), netip.Addr.Compare)
}
