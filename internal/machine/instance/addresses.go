// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/atomicfile"
)

// addressFile is the file in the state folder that keeps the addresses of services.
const addressFile = "addresses.json"

// addressBook assigns service addresses of a range (IPv4). Its methods do not change it: assign returns another book.
type addressBook struct {
	prefix netip.Prefix
	// given holds the addresses of all services that ever had one, so that a service that comes back gets its own
	// again, unless another one needs it.
	given map[v1alpha1.Key]netip.Addr
}

// bookFile is the JSON form of a book.
type bookFile struct {
	Range     netip.Prefix                `json:"range"`
	Addresses map[v1alpha1.Key]netip.Addr `json:"addresses"`
}

// loadAddresses reads the book of a state folder, which it makes if it is missing. Addresses outside of prefix are
// forgotten, because the range was changed.
func loadAddresses(dir string, prefix netip.Prefix) (addressBook, error) {
	b := addressBook{prefix: prefix, given: map[v1alpha1.Key]netip.Addr{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return b, fmt.Errorf("state folder: %w", err)
	}
	path := filepath.Join(dir, addressFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	var f bookFile
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err != nil {
		return b, fmt.Errorf("service addresses: %s: %w: remove the file to assign new addresses to all services", path, err)
	}
	taken := map[netip.Addr]bool{}
	for k, a := range f.Addresses {
		if b.usable(a) && !taken[a] {
			b.given[k], taken[a] = a, true
		}
	}
	return b, nil
}

// save writes the book to a state folder, completely or not at all.
func (b addressBook) save(dir string) error {
	data, err := json.MarshalIndent(bookFile{b.prefix, b.given}, "", "  ")
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, addressFile), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("service addresses: %w", err)
	}
	return nil
}

// bounds returns the first and the last usable address. The network's address, the first one (the machine's own on
// wangell0) and the broadcast address are not usable.
func (b addressBook) bounds() (first, last netip.Addr) {
	first = b.prefix.Masked().Addr().Next().Next()
	a := b.prefix.Masked().Addr().As4()
	for i := b.prefix.Bits(); i < 32; i++ {
		a[i/8] |= 1 << (7 - i%8)
	}
	return first, netip.AddrFrom4(a).Prev()
}

func (b addressBook) usable(a netip.Addr) bool {
	first, last := b.bounds()
	return a.Is4() && !a.Less(first) && !last.Less(a)
}

func (b addressBook) equal(o addressBook) bool {
	return b.prefix == o.prefix && maps.Equal(b.given, o.given)
}

// assign gives every service an address: the one that its manifest asks for, or else the one that it had, one that no
// service ever had, or one of a deleted service, in this order of preference.
func (b addressBook) assign(services []*v1alpha1.WangellService) (addressBook, error) {
	a := assignment{
		book: b, next: make(map[v1alpha1.Key]netip.Addr, len(services)),
		taken: make(map[netip.Addr]v1alpha1.Key, len(services)),
	}
	for _, step := range []func(*v1alpha1.WangellService) error{a.requested, a.previous} {
		for _, s := range services {
			if err := step(s); err != nil {
				return b, err
			}
		}
	}
	if err := a.others(services); err != nil {
		return b, err
	}
	return addressBook{prefix: b.prefix, given: a.next}, nil
}

// assignment is a book in the making.
type assignment struct {
	book  addressBook
	next  map[v1alpha1.Key]netip.Addr
	taken map[netip.Addr]v1alpha1.Key
}

func (a *assignment) give(k v1alpha1.Key, addr netip.Addr) { a.next[k], a.taken[addr] = addr, k }

// requested gives a service the address that its manifest asks for.
func (a *assignment) requested(s *v1alpha1.WangellService) error {
	k := v1alpha1.KeyOf(s)
	if s.Spec.Address == "" {
		return nil
	}
	addr, err := netip.ParseAddr(s.Spec.Address)
	if err != nil {
		return fmt.Errorf("service %s: spec.address: %w", k, err)
	}
	if !a.book.usable(addr) {
		first, last := a.book.bounds()
		return fmt.Errorf("service %s: spec.address %s cannot be used: the range %s has %s to %s for services: "+
			"choose one of these, or start with another --addresses", k, addr, a.book.prefix, first, last)
	}
	if other, ok := a.taken[addr]; ok {
		return fmt.Errorf("service %s: spec.address %s is already that of service %s: choose another, or leave it out",
			k, addr, other)
	}
	a.give(k, addr)
	return nil
}

// previous gives a service the address that it had.
func (a *assignment) previous(s *v1alpha1.WangellService) error {
	k := v1alpha1.KeyOf(s)
	addr, had := a.book.given[k]
	if !had || s.Spec.Address != "" {
		return nil
	}
	if other, ok := a.taken[addr]; ok {
		return fmt.Errorf("service %s: spec.address %s was already given to service %s, which may be in use: "+
			"choose another, or leave it out", other, addr, k)
	}
	a.give(k, addr)
	return nil
}

// others gives addresses to the remaining services, and reuses addresses of deleted services last.
func (a *assignment) others(services []*v1alpha1.WangellService) error {
	reserved := make(map[netip.Addr]v1alpha1.Key)
	for k, addr := range a.book.given {
		if _, wanted := a.next[k]; !wanted && a.taken[addr] == "" {
			reserved[addr] = k
		}
	}
	first, last := a.book.bounds()
	fresh, reused := first, first
	find := func(from *netip.Addr, free func(netip.Addr) bool) (netip.Addr, bool) {
		for ; !last.Less(*from); *from = from.Next() {
			if free(*from) {
				return *from, true
			}
		}
		return netip.Addr{}, false
	}
	for _, s := range services {
		k := v1alpha1.KeyOf(s)
		if _, has := a.next[k]; has {
			continue
		}
		addr, ok := find(&fresh, func(addr netip.Addr) bool { return a.taken[addr] == "" && reserved[addr] == "" })
		if !ok {
			addr, ok = find(&reused, func(addr netip.Addr) bool { return a.taken[addr] == "" })
		}
		if !ok {
			return fmt.Errorf("service %s: no address is left: all %d addresses of the range %s are in use: "+
				"start with larger --addresses", k, len(a.taken), a.book.prefix)
		}
		delete(reserved, addr)
		a.give(k, addr)
	}
	for addr, k := range reserved {
		a.next[k] = addr
	}
	return nil
}
