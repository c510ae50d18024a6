// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"wangell.loutres.me/internal/decide/sources"
)

const (
	// MaxSourceRules is the most rules for sources that a service can have: they fit one message.
	MaxSourceRules = 4096

	ruleSize  = 1 + 4 // bytes of a rule
	ruleAllow = 0x80  // bit of a rule's first byte; the others are the length of its prefix
)

// Sources are the rules for the sources of a service, in their encoding, so that services can be compared. The zero
// value has no rules, which refuses every source.
type Sources struct {
	// Rules of 5 bytes: the length of the prefix, plus 128 if it is allowed, and 4 bytes of IPv4 network address.
	encoded string
}

// NewSources returns rules for sources, which have distinct IPv4 prefixes. Order matters for comparisons only.
func NewSources(rules []sources.Rule) Sources {
	b := make([]byte, 0, ruleSize*len(rules))
	for _, r := range rules {
		first := byte(r.Prefix.Bits())
		if r.Allow {
			first |= ruleAllow
		}
		a := r.Prefix.Masked().Addr().As4()
		b = append(append(b, first), a[:]...)
	}
	return Sources{string(b)}
}

// Len returns the number of rules.
func (s Sources) Len() int { return len(s.encoded) / ruleSize }

// Rules returns the rules.
func (s Sources) Rules() []sources.Rule {
	if s.encoded == "" {
		return nil
	}
	rules := make([]sources.Rule, s.Len())
	for i := range rules {
		b := s.encoded[i*ruleSize : (i+1)*ruleSize]
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte([]byte(b[1:]))), int(b[0]&^ruleAllow))
		rules[i] = sources.Rule{Prefix: p, Allow: b[0]&ruleAllow != 0}
	}
	return rules
}

// MarshalText writes the rules for people: "+" allows a prefix, "-" denies it.
func (s Sources) MarshalText() (text []byte, err error) {
	for i, r := range s.Rules() {
		if i > 0 {
			text = append(text, ' ')
		}
		sign := byte('-')
		if r.Allow {
			sign = '+'
		}
		text = r.Prefix.AppendTo(append(text, sign))
	}
	return text, nil
}

func (s Sources) check() error {
	if s.Len() > MaxSourceRules {
		return fmt.Errorf("%d rules for sources, at most %d", s.Len(), MaxSourceRules)
	}
	for _, r := range s.Rules() {
		if !r.Prefix.IsValid() || r.Prefix != r.Prefix.Masked() {
			return fmt.Errorf("rule for sources %v: not a prefix", r.Prefix)
		}
	}
	return nil
}

// append appends the number of rules, then the rules.
func (s Sources) append(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(s.Len())), s.encoded...)
}

func (s *Sources) decode(d *decoder) {
	s.encoded = d.str(ruleSize * d.count(int(d.u16()), ruleSize))
}
