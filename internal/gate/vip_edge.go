// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/netip"
	"slices"
)

// SetEdge records which node announces a VIP, so that clients' segments enter the cluster there. Replies of
// connections that entered by an earlier announcing node leave by this one from now on. The gate remembers the last
// four nodes before. It has no effect without Config.RepliesByEdge, on an address that is no VIP, or without a node.
func (g *Gate) SetEdge(vip, node netip.Addr) error {
	if !g.cfg.RepliesByEdge || !node.Is4() {
		return nil
	}
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.vips[vip] == 0 {
		return nil
	}
	var was gateVipEdge
	if err := ignoreMissing(g.objs.VipEdges.Lookup(toAddr(vip), &was)); err != nil {
		return fmt.Errorf("VIP %v: reading which node announces it: %w", vip, err)
	}
	is := movedEdge(was, toBE(node))
	if is == was {
		return nil
	}
	if err := g.objs.VipEdges.Put(toAddr(vip), is); err != nil {
		return fmt.Errorf("VIP %v: writing which node announces it: %w", vip, err)
	}
	return nil
}

// movedEdge returns e once a node announces the VIP.
func movedEdge(e gateVipEdge, node uint32) gateVipEdge {
	if e.Now == node {
		return e
	}
	before := slices.DeleteFunc(append([]uint32{e.Now}, e.Before[:]...), func(n uint32) bool {
		return n == node || n == 0
	})
	out := gateVipEdge{Now: node}
	copy(out.Before[:], before)
	return out
}
