// SPDX-License-Identifier: Apache-2.0

// Package sources computes with sets of IPv4 client addresses: which sources may connect to a service. It is pure.
package sources

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Set is a set of IPv4 addresses. The zero value is empty. A Set does not change; operations return another.
type Set struct {
	spans []span // sorted, with gaps between them
}

// All returns the set of all IPv4 addresses.
func All() Set { return Set{[]span{{0, 1<<32 - 1}}} }

// Of returns the union of IPv4 prefixes. Bits beyond a prefix's length are ignored, and prefixes of IPv6 are left out.
func Of(prefixes ...netip.Prefix) Set {
	spans := make([]span, 0, len(prefixes))
	for _, p := range prefixes {
		if p.IsValid() && p.Addr().Is4() {
			spans = append(spans, spanOf(p))
		}
	}
	return Set{join(spans)}
}

// join sorts spans, and joins those that overlap or touch. It changes its argument.
func join(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	out := spans[:0]
	for _, s := range spans {
		n := len(out)
		if n > 0 && uint64(s.first) <= uint64(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, s.last)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// Union returns the addresses that are in s, in o, or in both.
func (s Set) Union(o Set) Set {
	switch {
	case s.IsEmpty():
		return o
	case o.IsEmpty():
		return s
	}
	return Set{join(slices.Concat(s.spans, o.spans))}
}

// Intersect returns the addresses that are in both s and o.
func (s Set) Intersect(o Set) Set {
	var out []span
	for i, j := 0, 0; i < len(s.spans) && j < len(o.spans); {
		a, b := s.spans[i], o.spans[j]
		if both := (span{max(a.first, b.first), min(a.last, b.last)}); both.first <= both.last {
			out = append(out, both)
		}
		if a.last < b.last {
			i++
		} else {
			j++
		}
	}
	return Set{out}
}

// Minus returns the addresses that are in s but not in o.
func (s Set) Minus(o Set) Set { return s.Intersect(o.complement()) }

func (s Set) complement() Set {
	var out []span
	next := uint64(0)
	for _, x := range s.spans {
		if uint64(x.first) > next {
			out = append(out, span{uint32(next), x.first - 1})
		}
		next = uint64(x.last) + 1
	}
	if next < 1<<32 {
		out = append(out, span{uint32(next), 1<<32 - 1})
	}
	return Set{out}
}

// Contains reports whether an address is in the set. An address of IPv6 never is.
func (s Set) Contains(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	b := a.As4()
	n := binary.BigEndian.Uint32(b[:])
	i, found := slices.BinarySearchFunc(s.spans, n, func(x span, n uint32) int { return cmp.Compare(x.first, n) })
	return found || i > 0 && n <= s.spans[i-1].last
}

// IsEmpty reports whether no address is in the set.
func (s Set) IsEmpty() bool { return len(s.spans) == 0 }

// Equal reports whether two sets have the same addresses.
func (s Set) Equal(o Set) bool { return slices.Equal(s.spans, o.spans) }
