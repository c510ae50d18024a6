// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// traffics has the services that route requests to a revision, by the revision's key.
type traffics map[runtime.Key]map[runtime.Key]bool

// set records the revisions of a service; none if it has pods of its own or is gone. It returns the services that have
// become revisions, or are no longer any.
func (t traffics) set(key runtime.Key, namespace string, revisions []v1alpha1.Revision) (changed []runtime.Key) {
	left := map[runtime.Key]bool{} // no longer revisions, unless they are named below
	for to, from := range t {
		if !from[key] {
			continue
		}
		if delete(from, key); len(from) == 0 {
			delete(t, to)
			left[to] = true
		}
	}
	for _, r := range revisions {
		to := runtime.Key(namespace + "/" + r.Revision)
		if t[to] == nil {
			t[to] = map[runtime.Key]bool{}
			if !left[to] {
				changed = append(changed, to)
			}
		}
		t[to][key] = true
	}
	for to := range left {
		if t[to] == nil {
			changed = append(changed, to)
		}
	}
	return changed
}

// to returns the services that route requests to a revision.
func (t traffics) to(key runtime.Key) (from []runtime.Key) {
	for k := range t[key] {
		from = append(from, k)
	}
	return from
}
