// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"os"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// converter converts layers.
type converter struct {
	o     Options
	from  *source
	to    sink
	work  *work
	slots chan struct{} // of compressors
	count *progress

	mu        sync.Mutex
	results   map[string]func() ([]packed, error) // by key
	delivered map[digest.Digest]*sync.Once
	failed    map[digest.Digest]error
	unpacked  map[digest.Digest]int64 // sizes of the archives of the source's layers, as far as known
}

// once calls a function only once for each key, because several layers of an image may be equal.
func (c *converter) once(key string, f func() ([]packed, error)) ([]packed, error) {
	c.mu.Lock()
	result, ok := c.results[key]
	if !ok {
		result = sync.OnceValues(f)
		c.results[key] = result
	}
	c.mu.Unlock()
	return result()
}

// recorded returns the layers that an earlier conversion made, if all of them are delivered or can be delivered.
func (c *converter) recorded(ctx context.Context, key string) ([]packed, bool) {
	var out []packed
	if !c.work.recall(key, &out) {
		return nil, false
	}
	for _, p := range out {
		if ok, err := c.to.has(ctx, p.Descriptor); err == nil && ok {
			continue
		}
		if !c.work.hasBlob(p.Descriptor.Digest, p.Descriptor.Size) || c.to.put(ctx, p.Descriptor) != nil {
			return nil, false
		}
	}
	return out, true
}

// deliver delivers a blob in a file, and removes the file.
func (c *converter) deliver(ctx context.Context, d ocispec.Descriptor, file string) error {
	c.mu.Lock()
	once := c.delivered[d.Digest]
	if once == nil {
		once = &sync.Once{}
		c.delivered[d.Digest] = once
	}
	c.mu.Unlock()
	once.Do(func() {
		err := os.Rename(file, c.work.blob(d.Digest))
		if err == nil {
			err = c.to.put(ctx, d)
		}
		if err != nil {
			c.mu.Lock()
			c.failed[d.Digest] = err
			c.mu.Unlock()
		}
	})
	_ = os.Remove(file) // of an equal one, if it is still there
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[d.Digest]
}

// slot waits for the right to keep a core busy.
func (c *converter) slot(ctx context.Context) (release func(), err error) {
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// spool returns the name of a new file.
func (c *converter) spool() (string, error) {
	f, err := os.CreateTemp(c.work.path(workSpool), "layer-")
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}
