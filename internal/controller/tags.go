// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	"wangell.loutres.me/internal/wire"
)

const (
	// tagPeriod is the time between two keys of tags. Each is valid for two such periods.
	tagPeriod = 24 * time.Hour
	// tagCheck is the interval of looks at the clock, which may be set.
	tagCheck = time.Hour
)

// tagKeysAt returns the keys of tags that are valid at a time, and when they change. They depend only on the wire's
// key and the time, so the next controller has the same. Of the two keys, the first is used in the first half of a
// period and the second in the other: so a daemon that learns of a change up to half a period late understands all
// others, and they understand it.
func tagKeysAt(key wire.Key, now time.Time) (*wire.TagKeys, time.Time) {
	const half = int64(tagPeriod / 2)
	n := now.UnixNano() / half
	k := &wire.TagKeys{First: uint64(n / 2), Second: n%2 == 1}
	for i := range k.Keys {
		derived := key.Derive(fmt.Sprintf("tag %d", k.First+uint64(i)))
		copy(k.Keys[i][:], derived[:])
	}
	return k, time.Unix(0, (n+1)*half)
}

// tagger gives daemons the keys of tags. It belongs to the loop.
type tagger struct {
	key     wire.Key
	loop    *loop
	daemons *daemons
	now     *wire.TagKeys   // nil before begin
	able    map[uint64]bool // sessions of daemons that know of tags
}

// begin sets the keys, now and whenever they change.
func (t *tagger) begin() {
	now := time.Now()
	keys, next := tagKeysAt(t.key, now)
	changed := t.now == nil || *t.now != *keys
	t.now = keys
	if changed {
		for id := range t.able {
			t.daemons.send(id, keys)
		}
	}
	t.loop.after(min(next.Sub(now), tagCheck), t.begin)
}

// ready reports whether a gate whose keys begin at a number can open the tags of others, now and after the next
// change.
func (t *tagger) ready(first uint64) bool {
	return t.now != nil && first != 0 && first+1 >= t.now.First && first <= t.now.First+1
}
