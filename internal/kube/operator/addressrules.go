// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// defaultQuarantine is the time for which resolvers and clients may well remember an address.
const defaultQuarantine = time.Hour

// AddressRules say which namespaces get which addresses of the pools.
type AddressRules struct {
	// Quarantine is how long other namespaces do not get an address that a service had.
	Quarantine time.Duration
	// PerNamespace is the largest number of addresses of a namespace; 0 is without limit.
	PerNamespace int
	// Reserved are ranges of the pools that only some namespaces get.
	Reserved []Reservation
}

// Reservation keeps addresses for namespaces.
type Reservation struct {
	Addresses  Pools
	Namespaces labels.Selector // of their labels
}

// ParseAddressRules parses YAML with the fields quarantine, perNamespace and reserved, which are all optional. Empty
// text gives the defaults.
func ParseAddressRules(text string) (AddressRules, error) {
	rules := AddressRules{Quarantine: defaultQuarantine}
	var in struct {
		Quarantine   *metav1.Duration `json:"quarantine"`
		PerNamespace int              `json:"perNamespace"`
		Reserved     []struct {
			Addresses []string             `json:"addresses"`
			Selector  metav1.LabelSelector `json:"namespaceSelector"`
		} `json:"reserved"`
	}
	if err := yaml.UnmarshalStrict([]byte(text), &in); err != nil {
		return rules, fmt.Errorf("rules of addresses: %w: write quarantine: 1h, for example",
			fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "\n", " ")))
	}
	if in.Quarantine != nil {
		rules.Quarantine = in.Quarantine.Duration
	}
	if rules.Quarantine < 0 || in.PerNamespace < 0 {
		return rules, fmt.Errorf("rules of addresses: quarantine %s, perNamespace %d: want 0 or more", rules.Quarantine,
			in.PerNamespace)
	}
	rules.PerNamespace = in.PerNamespace
	for i, r := range in.Reserved {
		pools, err := ParsePools(r.Addresses)
		if err != nil {
			return rules, fmt.Errorf("rules of addresses: reserved[%d]: %w", i, err)
		}
		if len(r.Selector.MatchLabels)+len(r.Selector.MatchExpressions) == 0 {
			return rules, fmt.Errorf("rules of addresses: reserved[%d]: no namespaceSelector: write namespaceSelector: "+
				"{matchLabels: {team: a}}, for example", i)
		}
		selector, err := metav1.LabelSelectorAsSelector(&r.Selector)
		if err != nil {
			return rules, fmt.Errorf("rules of addresses: reserved[%d].namespaceSelector: %w", i, err)
		}
		rules.Reserved = append(rules.Reserved, Reservation{pools, selector})
	}
	return rules, nil
}

// reserved reports whether an address is reserved, and if so, whether a namespace with these labels may have it.
func (r *AddressRules) reserved(a netip.Addr, of labels.Set) (reserved, ours bool) {
	for _, one := range r.Reserved {
		if one.Addresses.has(a) {
			reserved = true
			ours = ours || one.Namespaces.Matches(of)
		}
	}
	return reserved, ours
}

// hasReserved reports whether addresses are reserved for a namespace with these labels.
func (r *AddressRules) hasReserved(of labels.Set) bool {
	for _, one := range r.Reserved {
		if one.Namespaces.Matches(of) {
			return true
		}
	}
	return false
}
