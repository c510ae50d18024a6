// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"
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
