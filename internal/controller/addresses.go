// SPDX-License-Identifier: Apache-2.0

package controller

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
	"wangell.loutres.me/internal/runtime"
)

// addressFile is the file in the state folder that keeps which service has which address.
const addressFile = "addresses.json"

// addressBook knows the service addresses of a range (IPv4). Its functions change nothing: assign
// returns another book.
type addressBook struct {
	prefix netip.Prefix
	// given holds the addresses of all services that ever had one, so that a service that comes back
	// finds its own again, as long as nobody else needs it.
	given map[runtime.Key]netip.Addr
}

// bookFile is the JSON of a book.
type bookFile struct {
	Range     netip.Prefix               `json:"range"`
	Addresses map[runtime.Key]netip.Addr `json:"addresses"`
}

// openBook reads the book of a configuration, and makes its folder; it is empty if nothing is given from it.
func openBook(cfg Config) (addressBook, error) {
	if cfg.Addresses == (netip.Prefix{}) {
		return addressBook{}, nil
	}
	if !cfg.Addresses.IsValid() || !cfg.Addresses.Addr().Is4() || cfg.Addresses.Bits() > 30 || cfg.Addresses.Bits() < 8 {
		return addressBook{}, fmt.Errorf("service addresses: %v is not an IPv4 range from /8 to /30", cfg.Addresses)
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return addressBook{}, fmt.Errorf("state folder: %w", err)
	}
	return loadAddresses(cfg.StateDir, cfg.Addresses)
}

// loadAddresses reads the book of a state folder. Addresses outside of prefix are forgotten: the
// range was changed.
func loadAddresses(dir string, prefix netip.Prefix) (addressBook, error) {
	b := addressBook{prefix: prefix, given: map[runtime.Key]netip.Addr{}}
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
		return b, fmt.Errorf("service addresses: %s: %w: remove the file to have all services given new addresses", path, err)
	}
	taken := map[netip.Addr]bool{}
	for k, a := range f.Addresses {
		if b.usable(a) && !taken[a] {
			b.given[k], taken[a] = a, true
		}
	}
	return b, nil
}

// save writes the book to a state folder, at once or not at all.
func (b addressBook) save(dir string) error {
	data, err := json.MarshalIndent(bookFile{b.prefix, b.given}, "", "  ")
	if err != nil {
		return fmt.Errorf("service addresses: %w", err)
	}
	if err := writeFile(filepath.Join(dir, addressFile), append(data, '\n')); err != nil {
		return fmt.Errorf("service addresses: %w", err)
	}
	return nil
}

// writeFile replaces a file's content atomically, also with respect to a crash of the machine.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	if _, err = f.Write(data); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// first and last usable address: not the network's, not the first (the machine's own on wangell0),
// not the broadcast address.
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

// assign gives every service an address: the one that its manifest asks for, else the one that it
// had, else one that nobody ever had, else one of a service that is not there any more.
func (b addressBook) assign(services []*v1alpha1.WangellService) (addressBook, error) {
	first, last := b.bounds()
	next := addressBook{prefix: b.prefix, given: make(map[runtime.Key]netip.Addr, len(services))}
	taken := make(map[netip.Addr]runtime.Key, len(services))
	take := func(k runtime.Key, a netip.Addr) { next.given[k], taken[a] = a, k }

	for _, s := range services {
		k := runtime.KeyOf(s)
		if s.Spec.Address == "" {
			continue
		}
		a, err := netip.ParseAddr(s.Spec.Address)
		if err != nil {
			return b, fmt.Errorf("service %s: spec.address: %w", k, err)
		}
		if !b.usable(a) {
			return b, fmt.Errorf("service %s: spec.address %s cannot be used: the range %s has %s to %s for services: "+
				"choose one of these, or start with another --addresses", k, a, b.prefix, first, last)
		}
		if other, ok := taken[a]; ok {
			return b, fmt.Errorf("service %s: spec.address %s is that of service %s already: choose another, or leave it out", k, a, other)
		}
		take(k, a)
	}
	for _, s := range services {
		k := runtime.KeyOf(s)
		a, had := b.given[k]
		if !had || s.Spec.Address != "" {
			continue
		}
		if other, ok := taken[a]; ok {
			return b, fmt.Errorf("service %s: spec.address %s was given to service %s already, which may be in use: "+
				"choose another, or leave it out", other, a, k)
		}
		take(k, a)
	}
	reserved := make(map[netip.Addr]runtime.Key)
	for k, a := range b.given {
		if _, wanted := next.given[k]; !wanted {
			if _, ok := taken[a]; !ok {
				reserved[a] = k
			}
		}
	}
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
		k := runtime.KeyOf(s)
		if _, has := next.given[k]; has {
			continue
		}
		a, ok := find(&fresh, func(a netip.Addr) bool { return taken[a] == "" && reserved[a] == "" })
		if !ok {
			a, ok = find(&reused, func(a netip.Addr) bool { return taken[a] == "" })
		}
		if !ok {
			return b, fmt.Errorf("service %s: no address is left: all %d of the range %s are in use: start with larger --addresses",
				k, len(taken), b.prefix)
		}
		delete(reserved, a)
		take(k, a)
	}
	for a, k := range reserved {
		next.given[k] = a
	}
	return next, nil
}

func (b addressBook) equal(o addressBook) bool {
	return b.prefix == o.prefix && maps.Equal(b.given, o.given)
}
