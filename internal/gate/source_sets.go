// SPDX-License-Identifier: Apache-2.0

package gate

import "wangell.loutres.me/internal/decide/sources"

// sourceSets are the sets of rules in `source_rules`. Guarded by serviceTable.mu.
type sourceSets struct {
	last uint32                    // the set that was written last; sets are numbered from 1
	of   map[uint32][]sources.Rule // set in force → its rules
}

// next returns the number of a set that no service uses.
func (t *sourceSets) next() uint32 {
	for {
		t.last++
		if _, used := t.of[t.last]; t.last != 0 && !used {
			return t.last
		}
	}
}

// count returns how many rules all sets have together.
func (t *sourceSets) count() (n uint32) {
	for _, rules := range t.of {
		n += uint32(len(rules))
	}
	return n
}
