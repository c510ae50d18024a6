// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// resources are resources of one kind, by name.
type resources = map[string]types.Resource

// change changes a cache, if there is something to change.
func change(c *cache.LinearCache, put resources, del []string) error {
	if len(put)+len(del) == 0 {
		return nil
	}
	return c.UpdateResources(put, del)
}
