// SPDX-License-Identifier: Apache-2.0

package placement

import "hash/fnv"

// The hashes of rendezvous hashing: the candidate with the highest Mix(hash of the candidate ^ hash of the key) gets
// the key, so when a candidate leaves, only its keys move.

// Sum is the 64-bit FNV-1a hash.
func Sum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

// Mix is the finalizer of MurmurHash3 (fmix64): every bit of the result depends on every bit of x.
func Mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
