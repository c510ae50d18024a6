// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	mutation "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	early "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// clientHeaders are what proxies write of the client, and of the request that it has sent. Envoy's own are among them.
var clientHeaders = []string{
	"forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-forwarded-prefix",
}

// forgetClient removes clientHeaders from a request before Envoy writes its own.
func forgetClient() *core.TypedExtensionConfig {
	m := &early.HeaderMutation{}
	for _, name := range clientHeaders {
		m.Mutations = append(m.Mutations, &mutation.HeaderMutation{Action: &mutation.HeaderMutation_Remove{Remove: name}})
	}
	return &core.TypedExtensionConfig{Name: "envoy.http.early_header_mutation.header_mutation", TypedConfig: pack(m)}
}

// httpChains are the filter chains for requests. Those of trusted proxies have one of their own, in which what they
// write of their clients is kept. match is what both have to match; it may be nil.
func httpChains(s *Service, match *listener.FilterChainMatch) []*listener.FilterChain {
	chains := []*listener.FilterChain{{Name: "http", FilterChainMatch: match, Filters: httpFilters(s, false)}}
	if len(s.TrustedProxies) == 0 {
		return chains
	}
	trusted := &listener.FilterChainMatch{ApplicationProtocols: match.GetApplicationProtocols()}
	for _, p := range s.TrustedProxies {
		trusted.SourcePrefixRanges = append(trusted.SourcePrefixRanges, &core.CidrRange{
			AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits())),
		})
	}
	return append(chains,
		&listener.FilterChain{Name: "http-trusted", FilterChainMatch: trusted, Filters: httpFilters(s, true)})
}

// ignoredUpgrades matches the values of the header Upgrade that Envoy ignores, as a server does that does not know them
// (RFC 9110, section 7.8): all but upgrades. Without it, Envoy refuses them.
func ignoredUpgrades() (all []*matcher.StringMatcher) {
	for _, expression := range otherThan(upgrades) {
		all = append(all, &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_SafeRegex{
			SafeRegex: &matcher.RegexMatcher{Regex: expression},
		}})
	}
	return all
}

// otherThan returns regular expressions of which one matches each text but some, without regard to case: one for each
// first byte of these, and one for other first bytes. Envoy refuses a single one as too large.
func otherThan(texts []string) (all []string) {
	byFirst := map[byte][]string{}
	var first strings.Builder
	for _, t := range texts {
		byFirst[t[0]] = append(byFirst[t[0]], t[1:])
	}
	for _, c := range slices.Sorted(maps.Keys(byFirst)) {
		first.WriteString(anyCase(c))
		all = append(all, "["+anyCase(c)+"]"+allBut(byFirst[c]))
	}
	return append(all, "|[^"+first.String()+"].*")
}

// allBut returns a regular expression for all texts but some, without regard to case. RE2, which Envoy uses, has no
// negation.
func allBut(texts []string) string {
	rest := map[byte][]string{} // by first byte
	ends := false
	for _, t := range texts {
		if t == "" {
			ends = true
			continue
		}
		rest[t[0]] = append(rest[t[0]], t[1:])
	}
	var first, choices strings.Builder
	for _, c := range slices.Sorted(maps.Keys(rest)) {
		class := anyCase(c)
		first.WriteString(class)
		fmt.Fprintf(&choices, "|[%s]%s", class, allBut(rest[c]))
	}
	other := "."
	if first.Len() > 0 {
		other = "[^" + first.String() + "]"
	}
	if ends {
		return "(?:" + other + ".*" + choices.String() + ")"
	}
	return "(?:|" + other + ".*" + choices.String() + ")"
}

// anyCase returns a byte in both cases, for a class of characters.
func anyCase(c byte) string {
	switch r := rune(c); {
	case unicode.IsLetter(r):
		return string(unicode.ToLower(r)) + string(unicode.ToUpper(r))
	case unicode.IsDigit(r):
		return string(r)
	default:
		return `\` + string(r)
	}
}
