// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"

	"wangell.loutres.me/internal/decide/placement"
)

// owner returns the node that answers ARP for a VIP: the one with the highest score (rendezvous hashing).
// All nodes with the same list agree, VIPs are divided evenly, and when a node leaves, only its VIPs move.
// docs/protocol.md specifies the score, because nodes of different versions must agree. Without nodes, the result is
// empty.
func owner(vip netip.Addr, nodes []scored) scored {
	b := vip.As16()
	key := placement.Sum(b[:])
	best, most := scored{}, uint64(0)
	for _, n := range nodes {
		if s := placement.Mix(n.hash ^ key); best.name == "" || s > most || s == most && n.name < best.name {
			best, most = n, s
		}
	}
	return best
}

// scored is a node with the hash of its name.
type scored struct {
	name string
	addr netip.Addr // not set by score
	hash uint64
}

// score hashes a node's name.
func score(name string) scored {
	return scored{name: name, hash: placement.Mix(placement.Sum([]byte(name)))}
}
