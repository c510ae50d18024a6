// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"

	"wangell.loutres.me/internal/rendezvous"
)

// owner returns the name of the node that answers ARP for a VIP: the one with the highest score (rendezvous hashing).
// All nodes with the same list agree, VIPs are divided evenly, and when a node leaves, only its VIPs move.
// docs/protocol.md specifies the score, because nodes of different versions must agree. Without nodes, the name is
// empty.
func owner(vip netip.Addr, nodes []scored) string {
	b := vip.As16()
	key := rendezvous.Sum(b[:])
	best, most := "", uint64(0)
	for _, n := range nodes {
		if s := rendezvous.Mix(n.hash ^ key); best == "" || s > most || s == most && n.name < best {
			best, most = n.name, s
		}
	}
	return best
}

// scored is a node's name with the hash of the name.
type scored struct {
	name string
	hash uint64
}

// score hashes a node's name.
func score(name string) scored { return scored{name, rendezvous.Mix(rendezvous.Sum([]byte(name)))} }
