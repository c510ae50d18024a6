// SPDX-License-Identifier: Apache-2.0

package node

import (
	"hash/fnv"
	"net/netip"
)

// owner returns the name of the node that answers ARP for a VIP: the one with the highest score (rendezvous hashing).
// All nodes with the same list agree, VIPs are divided evenly, and when a node leaves, only its VIPs move.
// docs/protocol.md specifies the score, because nodes of different versions must agree. Without nodes, the name is
// empty.
func owner(vip netip.Addr, nodes []scored) string {
	b := vip.As16()
	key := fnv64(b[:])
	best, most := "", uint64(0)
	for _, n := range nodes {
		if s := mix(n.hash ^ key); best == "" || s > most || s == most && n.name < best {
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
func score(name string) scored { return scored{name, mix(fnv64([]byte(name)))} }

// fnv64 is the 64-bit FNV-1a hash.
func fnv64(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

// mix is the finalizer of MurmurHash3 (fmix64): every bit of the result depends on every bit of x.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
