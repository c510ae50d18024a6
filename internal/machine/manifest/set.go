// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"slices"

	"wangell.loutres.me/api/v1alpha1"
)

// Set holds the services of all sources, sorted by namespace and name, each with its defaults and an empty status. A
// Set is immutable: copy a service before changing it.
type Set []*v1alpha1.WangellService

// Get returns the service with a key, or nil.
func (s Set) Get(k v1alpha1.Key) *v1alpha1.WangellService {
	namespace, name := k.Split()
	i, ok := slices.BinarySearchFunc(s, 0, func(svc *v1alpha1.WangellService, _ int) int {
		return cmp.Or(cmp.Compare(svc.Namespace, namespace), cmp.Compare(svc.Name, name))
	})
	if !ok {
		return nil
	}
	return s[i]
}
