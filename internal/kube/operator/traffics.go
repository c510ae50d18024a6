// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"wangell.loutres.me/api/v1alpha1"
)

// traffics has the services that route requests to a revision, by the revision's key.
type traffics map[v1alpha1.Key]map[v1alpha1.Key]bool

// set records the revisions of a service; none if it has pods of its own or is gone. It returns the services that have
// become revisions, or are no longer any.
func (t traffics) set(key v1alpha1.Key, namespace string, revisions []v1alpha1.Revision) (changed []v1alpha1.Key) {
	left := map[v1alpha1.Key]bool{} // no longer revisions, unless they are named below
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
		to := v1alpha1.Key(namespace + "/" + r.Revision)
		if t[to] == nil {
			t[to] = map[v1alpha1.Key]bool{}
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
func (t traffics) to(key v1alpha1.Key) (from []v1alpha1.Key) {
	for k := range t[key] {
		from = append(from, k)
	}
	return from
}
