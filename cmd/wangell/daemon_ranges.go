// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/machine/instance"
)

// serviceRanges parses IPv4 ranges: CIDR, or FIRST-LAST, which becomes the fewest prefixes that cover exactly that
// range. A range that does not fit into gate.MaxRanges prefixes is left out; the gate gives each service outside its
// ranges a route of its own.
func serviceRanges(texts []string) (out []netip.Prefix, err error) {
	for _, text := range texts {
		first, last, isRange := strings.Cut(strings.TrimSpace(text), "-")
		if !isRange {
			p, err := netip.ParsePrefix(first)
			if err != nil || !p.Addr().Is4() {
				return nil, fmt.Errorf("service addresses %q: want an IPv4 range, such as %s or 192.0.2.10-192.0.2.20",
					text, instance.DefaultAddresses)
			}
			out = append(out, p.Masked())
			continue
		}
		from, errFrom := netip.ParseAddr(strings.TrimSpace(first))
		to, errTo := netip.ParseAddr(strings.TrimSpace(last))
		r := netipx.IPRangeFrom(from, to)
		if errors.Join(errFrom, errTo) != nil || !r.IsValid() || !from.Is4() {
			return nil, fmt.Errorf("service addresses %q: want FIRST-LAST, two IPv4 addresses in order", text)
		}
		if p := r.Prefixes(); len(out)+len(p) <= gate.MaxRanges {
			out = append(out, p...)
		}
	}
	return out, nil
}
