// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"

	"wangell.loutres.me/api/v1alpha1"
)

// Range is a range of IPv4 addresses, First and Last included.
type Range struct{ First, Last netip.Addr }

// size returns the number of addresses.
func (r Range) size() uint64 {
	return uint64(number(r.Last)) - uint64(number(r.First)) + 1
}

func (r Range) has(a netip.Addr) bool { return !a.Less(r.First) && !r.Last.Less(a) }

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func address(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// Pools are the ranges from which services get their addresses. They do not overlap.
type Pools []Range

// minBits is the shortest prefix of a pool.
const minBits = 8

// ParsePools parses pools. Each is "10.46.100.0/24" (without the network and broadcast address, unless it has two
// addresses only) or "10.46.100.10-10.46.100.20".
func ParsePools(texts []string) (Pools, error) {
	var pools Pools
	for _, text := range texts {
		r, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("service addresses %q: %w: write 10.46.100.0/24 or 10.46.100.10-10.46.100.20, for example",
				text, err)
		}
		for i, other := range pools {
			if other.has(r.First) || r.has(other.First) {
				return nil, fmt.Errorf("service addresses %q: overlaps %q: leave one of the two out", text, texts[i])
			}
		}
		pools = append(pools, r)
	}
	return pools, nil
}

// ParsePoolsYAML parses a YAML list of pools, or text with commas, spaces or newlines between them.
func ParsePoolsYAML(text string) (Pools, error) {
	var list []string
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		list = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' || r == ' ' })
	}
	return ParsePools(list)
}

func parseRange(text string) (Range, error) {
	if from, to, isRange := strings.Cut(text, "-"); isRange {
		first, err := netip.ParseAddr(strings.TrimSpace(from))
		if err != nil {
			return Range{}, err
		}
		last, err := netip.ParseAddr(strings.TrimSpace(to))
		switch {
		case err != nil:
			return Range{}, err
		case !usable(first) || !usable(last):
			return Range{}, fmt.Errorf("has no IPv4 addresses that clients can use")
		case last.Less(first):
			return Range{}, fmt.Errorf("%s is before %s", last, first)
		case number(last)-number(first) > 1<<(32-minBits):
			return Range{}, fmt.Errorf("has too many addresses")
		}
		return Range{first, last}, nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return Range{}, err
	case !p.Addr().Is4():
		return Range{}, fmt.Errorf("is not IPv4")
	case p.Bits() < minBits:
		return Range{}, fmt.Errorf("has too many addresses")
	case !usable(p.Addr()):
		return Range{}, fmt.Errorf("has no IPv4 addresses that clients can use")
	}
	first := number(p.Masked().Addr())
	last := first | uint32(1<<(32-p.Bits())-1)
	if p.Bits() < 31 {
		first, last = first+1, last-1
	}
	return Range{address(first), address(last)}, nil
}

func usable(a netip.Addr) bool { return a.Is4() && a.IsGlobalUnicast() }

// String lists the ranges.
func (p Pools) String() string {
	texts := make([]string, len(p))
	for i, r := range p {
		texts[i] = fmt.Sprintf("%s-%s", r.First, r.Last)
	}
	return strings.Join(texts, ", ")
}

func (p Pools) has(a netip.Addr) bool {
	for _, r := range p {
		if r.has(a) {
			return true
		}
	}
	return false
}

func (p Pools) size() (n uint64) {
	for _, r := range p {
		n += r.size()
	}
	return n
}

// at returns the n-th address of all ranges.
func (p Pools) at(n uint64) netip.Addr {
	for _, r := range p {
		if n < r.size() {
			return address(number(r.First) + uint32(n))
		}
		n -= r.size()
	}
	return netip.Addr{}
}

// addressError is why a service has no address.
type addressError struct {
	reason  string // of the condition AddressAssigned
	message string
}

// Error implements error.
func (e addressError) Error() string { return e.message }

// book records which service has which address. It is rebuilt from the status of the services.
type book struct {
	pools Pools
	held  map[netip.Addr]v1alpha1.Key
	of    map[v1alpha1.Key]netip.Addr
	// left are the addresses of deleted services. Others get them last, so that a service that is created again gets
	// its own back.
	left map[netip.Addr]v1alpha1.Key
}

func newBook(pools Pools) *book {
	return &book{pools: pools, held: map[netip.Addr]v1alpha1.Key{}, of: map[v1alpha1.Key]netip.Addr{},
		left: map[netip.Addr]v1alpha1.Key{}}
}

// claim returns the address of a service: the one in its spec, else its present one, else its former one, else one
// from the pools, which depends only on its name while that one is free. A service keeps its address when the pools
// change.
func (b *book) claim(k v1alpha1.Key, asked string, had netip.Addr) (netip.Addr, error) {
	if asked != "" {
		a, err := netip.ParseAddr(asked)
		switch other, taken := b.held[a]; {
		case err != nil:
			return a, addressError{"Invalid", fmt.Sprintf("spec.address: %v", err)}
		case taken && other != k:
			return a, addressError{"Conflict", fmt.Sprintf(
				"spec.address %s is already used by service %s: choose another, or leave it out", a, other)}
		case !b.pools.has(a) && b.of[k] != a:
			return a, addressError{"OutOfRange", fmt.Sprintf(
				"spec.address %s is not in the pools of service addresses (%s): choose one of these, or leave it out",
				a, b.pools)}
		}
		return b.take(k, a), nil
	}
	if a, has := b.of[k]; has {
		return a, nil
	}
	if _, taken := b.held[had]; had.IsValid() && b.pools.has(had) && !taken {
		return b.take(k, had), nil
	}
	size := b.pools.size()
	if size == 0 {
		return netip.Addr{}, addressError{"NoPool", "there is no pool of service addresses: name one under addresses " +
			"in the ConfigMap that the controller's Deployment reads (the chart's value addresses), " +
			"or start the controller with --service-addresses"}
	}
	for _, mayTake := range []func(netip.Addr) bool{
		func(a netip.Addr) bool { left, was := b.left[a]; return !was || left == k },
		func(netip.Addr) bool { return true },
	} {
		begin := hash(k) % size
		for i := range size {
			a := b.pools.at((begin + i) % size)
			if _, taken := b.held[a]; !taken && mayTake(a) {
				return b.take(k, a), nil
			}
		}
	}
	return netip.Addr{}, addressError{"Exhausted", fmt.Sprintf(
		"no address is left: all %d addresses of the pools (%s) are in use: add a pool", size, b.pools)}
}

func hash(k v1alpha1.Key) uint64 {
	h := fnv.New64a()
	h.Write([]byte(k))
	// The low bits of FNV are unevenly distributed for short keys that differ at their end only.
	v := h.Sum64()
	return v ^ v>>32
}

func (b *book) take(k v1alpha1.Key, a netip.Addr) netip.Addr {
	if old, has := b.of[k]; has && old != a {
		delete(b.held, old)
	}
	b.held[a], b.of[k] = k, a
	delete(b.left, a)
	return a
}

// maxLeft bounds the remembered addresses of deleted services.
const maxLeft = 100_000

// release frees the address of a service, and reports whether it had one.
func (b *book) release(k v1alpha1.Key) bool {
	a, has := b.of[k]
	if !has {
		return false
	}
	delete(b.of, k)
	delete(b.held, a)
	if len(b.left) >= maxLeft {
		clear(b.left)
	}
	b.left[a] = k
	return true
}
