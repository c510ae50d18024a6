// SPDX-License-Identifier: Apache-2.0

package access

import (
	"sync"
	"time"
)

// maxCached bounds the entries of a cache.
const maxCached = 4096

// rightsLast is how long an answer of the API server is used.
const rightsLast = 10 * time.Second

// cache keeps answers of the API server for rightsLast. Errors are not kept.
type cache[K comparable, V any] struct {
	mu      sync.Mutex
	entries map[K]entry[V]
}

type entry[V any] struct {
	value V
	until time.Time
}

// get returns the cached value of a key, or else calls ask for it.
func (c *cache[K, V]) get(k K, now time.Time, ask func() (V, error)) (V, error) {
	c.mu.Lock()
	e, ok := c.entries[k]
	c.mu.Unlock()
	if ok && now.Before(e.until) {
		return e.value, nil
	}
	v, err := ask()
	if err != nil {
		return v, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= maxCached {
		for k, e := range c.entries {
			if !now.Before(e.until) {
				delete(c.entries, k)
			}
		}
	}
	if len(c.entries) >= maxCached || c.entries == nil {
		c.entries = map[K]entry[V]{} // all were asked for within seconds
	}
	c.entries[k] = entry[V]{v, now.Add(rightsLast)}
	return v, nil
}
