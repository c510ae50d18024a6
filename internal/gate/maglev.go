// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"slices"
)

// maglevTable fills a Maglev lookup table (Eisenbud et al., Maglev, NSDI 2016, 3.4) of a prime size: each entry is the
// index of a name. Every name gets an equal share, give or take one entry, and few entries change when a name is added
// or removed. The result does not depend on the order of the names, which must be distinct. It is nil without names.
func maglevTable(names []uint64, size int) []int {
	if len(names) == 0 {
		return nil
	}
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(names[a], names[b]) })
	offset, skip, next := make([]uint64, len(names)), make([]uint64, len(names)), make([]uint64, len(names))
	for i, n := range names {
		offset[i] = splitmix(n) % uint64(size)
		skip[i] = splitmix(n^0x9e3779b97f4a7c15)%uint64(size-1) + 1
	}
	table := make([]int, size)
	for i := range table {
		table[i] = -1
	}
	for filled := 0; ; {
		for _, i := range order {
			at := (offset[i] + next[i]*skip[i]) % uint64(size)
			for table[at] >= 0 {
				next[i]++
				at = (offset[i] + next[i]*skip[i]) % uint64(size)
			}
			table[at] = i
			next[i]++
			if filled++; filled == size {
				return table
			}
		}
	}
}

// splitmix mixes the bits of a number (Steele et al., Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
