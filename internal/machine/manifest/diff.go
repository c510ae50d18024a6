// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/equality"
	"wangell.loutres.me/api/v1alpha1"
)

// Diff compares two sets. It returns the services that are new, those whose spec changed (as they are now) and those
// that are gone (as they were), each in the order of a Set. Labels and annotations do not count as changes.
func Diff(old, now Set) (added, changed, removed []*v1alpha1.WangellService) {
	i, j := 0, 0
	for i < len(old) || j < len(now) {
		order := 0
		switch {
		case i == len(old):
			order = 1
		case j == len(now):
			order = -1
		default:
			order = cmp.Or(cmp.Compare(old[i].Namespace, now[j].Namespace), cmp.Compare(old[i].Name, now[j].Name))
		}
		switch {
		case order < 0:
			removed = append(removed, old[i])
			i++
		case order > 0:
			added = append(added, now[j])
			j++
		default:
			if !equality.Semantic.DeepEqual(old[i].Spec, now[j].Spec) {
				changed = append(changed, now[j])
			}
			i++
			j++
		}
	}
	return added, changed, removed
}
