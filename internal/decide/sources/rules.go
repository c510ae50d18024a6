// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Rule allows or denies the clients of a prefix. Of the rules that match an address, the one with the longest prefix
// applies; an address without a matching rule is refused.
type Rule struct {
	Prefix netip.Prefix // IPv4, masked
	Allow  bool
}

// choice has the verdicts that a subtree of the address space can inherit at the cost of the fewest rules.
type choice uint8

const (
	deny choice = 1 << iota
	allow
)

// node is a prefix of the address space with its choices.
type node struct {
	can      choice
	children *[2]node // nil if all its addresses have the same verdict
}

// Rules returns the shortest list of rules for the set, sorted by address and, for equal addresses, length. It is the
// optimal routing table construction of Draves, King, Venkatachary and Zill (INFOCOM 1999) for two next hops.
func (s Set) Rules() []Rule {
	root := decide(s.spans, 0, 32)
	return appendRules(nil, &root, 0, 32, deny)
}

// decide builds the tree below the prefix that begins at first and leaves free bits open. spans are those that overlap
// it, at least in part.
func decide(spans []span, first uint32, free int) node {
	last := first | uint32(uint64(1)<<free-1)
	for len(spans) > 0 && spans[0].last < first {
		spans = spans[1:]
	}
	for len(spans) > 0 && spans[len(spans)-1].first > last {
		spans = spans[:len(spans)-1]
	}
	switch {
	case len(spans) == 0:
		return node{can: deny}
	case spans[0].first <= first && spans[0].last >= last:
		return node{can: allow}
	}
	half := first | 1<<(free-1)
	n := node{children: &[2]node{decide(spans, first, free-1), decide(spans, half, free-1)}}
	if n.can = n.children[0].can & n.children[1].can; n.can == 0 {
		n.can = deny | allow
	}
	return n
}

// appendRules appends the rules of a subtree whose addresses have a verdict by a shorter prefix already.
func appendRules(rules []Rule, n *node, first uint32, free int, inherited choice) []Rule {
	if n.can&inherited == 0 {
		inherited = n.can // a single one, as the other one is missing
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], first)
		rules = append(rules, Rule{netip.PrefixFrom(netip.AddrFrom4(a), 32-free), inherited == allow})
	}
	if n.children == nil {
		return rules
	}
	rules = appendRules(rules, &n.children[0], first, free-1, inherited)
	return appendRules(rules, &n.children[1], first|1<<(free-1), free-1, inherited)
}

// Within returns a subset that needs at most limit rules: s itself if possible, otherwise as many of its ranges as fit,
// widest first. left is the number of ranges that are left out.
func (s Set) Within(limit int) (subset Set, left int) {
	if len(s.Rules()) <= limit {
		return s, 0
	}
	widest := slices.Clone(s.spans)
	slices.SortStableFunc(widest, func(a, b span) int { return cmp.Compare(b.last-b.first, a.last-a.first) })
	for n := min(limit, len(widest)); n > 0; n = n * 3 / 4 {
		subset = Set{join(slices.Clone(widest[:n]))}
		if len(subset.Rules()) <= limit {
			return subset, len(widest) - n
		}
	}
	return Set{}, len(widest)
}
