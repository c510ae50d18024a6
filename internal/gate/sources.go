// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"wangell.loutres.me/internal/decide/sources"
)

// sourceSets tracks the sets of rules in `source_rules`. Guarded by serviceTable.mu.
type sourceSets struct {
	last uint32                    // the set that was written last; sets are numbered from 1
	of   map[uint32][]sources.Rule // set in force → its rules
}

// next returns the number of a set that no service uses.
func (t *sourceSets) next() uint32 {
	for {
		t.last++
		if _, used := t.of[t.last]; t.last != 0 && !used {
			return t.last
		}
	}
}

// count returns how many rules all sets have together.
func (t *sourceSets) count() (n uint32) {
	for _, rules := range t.of {
		n += uint32(len(rules))
	}
	return n
}

// ruleBits is the number of bits of a source_rule_key before the IPv4 address.
const ruleBits = 32 + 96

func toRuleKey(set uint32, r sources.Rule) gateSourceRuleKey {
	return gateSourceRuleKey{
		PrefixBits: ruleBits + uint32(r.Prefix.Bits()), Rules: set, Client: toAddr(r.Prefix.Addr()),
	}
}

// adoptSources takes over the rules that an earlier process has written, and removes rules that no service uses.
// inForce has the sets that services use.
func (g *Gate) adoptSources(inForce map[uint32]bool) error {
	t := &g.services.sets
	t.of = map[uint32][]sources.Rule{}
	var stale []gateSourceRuleKey
	var k gateSourceRuleKey
	var v uint32
	it := g.objs.SourceRules.Iterate()
	for it.Next(&k, &v) {
		t.last = max(t.last, k.Rules)
		if !inForce[k.Rules] {
			stale = append(stale, k)
			continue
		}
		prefix, err := fromAddr(k.Client).Prefix(int(k.PrefixBits) - ruleBits)
		if err != nil {
			return fmt.Errorf("reading the gate's rules for sources: %w", err)
		}
		t.of[k.Rules] = append(t.of[k.Rules], sources.Rule{
			Prefix: prefix, Allow: v == uint32(gateSourceVerdictSOURCE_ALLOWED),
		})
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("reading the gate's rules for sources: %w", err)
	}
	for set := range inForce {
		t.last = max(t.last, set)
	}
	for _, k := range stale {
		if err := g.objs.SourceRules.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing a rule for sources: %w", err)
		}
	}
	return nil
}

// prepareSources puts the rules of a service in force, before the service is written. They are written as a new set
// before anything refers to them, so that no source is judged by half of them; if that fails, the service refuses every
// source. It returns the set of rules that becomes unused once the service is written, or 0.
func (g *Gate) prepareSources(s Service, index uint32) (unused uint32) {
	t := &g.services.sets
	f := g.filters.at(index)
	before := f.Rules
	if !s.Restricted {
		return before
	}
	if had, ok := t.of[before]; ok && slices.Equal(had, s.Sources) {
		return 0
	}
	set, rules := t.next(), s.Sources
	for i, r := range rules {
		verdict := uint32(gateSourceVerdictSOURCE_DENIED)
		if r.Allow {
			verdict = uint32(gateSourceVerdictSOURCE_ALLOWED)
		}
		if err := g.objs.SourceRules.Put(toRuleKey(set, r), verdict); err != nil {
			g.log.Error("cannot write the rules for a service's sources: it refuses all of them",
				"address", s.Addr, "rules", len(rules), "error", err)
			g.deleteRules(set, rules[:i])
			set, rules = t.next(), nil
			break
		}
	}
	t.of[set] = rules
	atomic.StoreUint32(&f.Rules, set)
	return before
}

// dropSources removes a set of rules that no service uses any more. A SYN that is being judged by it at that moment may
// be dropped; its client sends it again.
func (g *Gate) dropSources(set uint32) {
	t := &g.services.sets
	if rules, ok := t.of[set]; ok {
		delete(t.of, set)
		g.deleteRules(set, rules)
	}
}

func (g *Gate) deleteRules(set uint32, rules []sources.Rule) {
	for _, r := range rules {
		if err := g.objs.SourceRules.Delete(toRuleKey(set, r)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			g.log.Error("cannot remove a rule for sources", "prefix", r.Prefix, "error", err)
		}
	}
}
