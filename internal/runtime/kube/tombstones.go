// SPDX-License-Identifier: Apache-2.0

package kube

import "time"

// Bounds of what is remembered of pods that are gone: late reports arrive within seconds.
const (
	tombstoneAge  = 10 * time.Minute
	maxTombstones = 100_000
)

// tombstones remembers the UIDs of pods that are gone, so that a late report does not resurrect one.
type tombstones struct {
	at    map[string]time.Time
	order []string // oldest first
}

func (t *tombstones) add(uid string, now time.Time) {
	if t.at == nil {
		t.at = map[string]time.Time{}
	}
	for len(t.order) > 0 && (len(t.order) >= maxTombstones || now.Sub(t.at[t.order[0]]) > tombstoneAge) {
		delete(t.at, t.order[0])
		t.order = t.order[1:]
	}
	if _, found := t.at[uid]; !found {
		t.at[uid] = now
		t.order = append(t.order, uid)
	}
}

func (t *tombstones) has(uid string) bool {
	_, found := t.at[uid]
	return found
}
