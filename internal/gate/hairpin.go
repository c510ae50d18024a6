// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"net/netip"
)

// hairpinRange has the addresses that pods see as clients when they connect to themselves by their own service
// (bpf/hairpin.h).
var hairpinRange = netip.MustParsePrefix("240.0.0.0/4")

// clientOf returns the address of a flow's client.
func (g *Gate) clientOf(k gateFlowKey) netip.Addr {
	a := fromAddr(k.Client)
	if !hairpinRange.Contains(a) {
		return a
	}
	four := a.As4()
	index := binary.BigEndian.Uint32(four[:]) &^ (0xf << 28)
	if index >= g.cfg.Sizes.Pods {
		return a
	}
	if p := g.pods.at(index); p.Vip.Addr == k.Service {
		return fromAddr(p.Addr)
	}
	return a
}
