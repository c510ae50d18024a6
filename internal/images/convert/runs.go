// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// run is a group of neighbouring layers of the source that is converted together.
type run struct {
	first, last int // inclusive
	out         []packed
}

// runsOf divides layers, given the sizes of their archives: in mode Split, small neighbours are joined up to a size.
func runsOf(l Layers, sizes []int64) []run {
	var runs []run
	var filled int64
	for i, size := range sizes {
		last := len(runs) - 1
		joins := l.Mode == Squash || l.Mode == Split && filled+size <= l.Size
		if last >= 0 && joins {
			runs[last].last = i
			filled += size
			continue
		}
		runs = append(runs, run{first: i, last: i})
		filled = size
	}
	return runs
}

// convertLayers returns the layers of the result, by run.
func (c *converter) convertLayers(ctx context.Context, layers []layer) ([]run, error) {
	keeps := c.o.Layers.Mode == Keep
	for i, l := range layers {
		switch {
		case encrypted(l.Descriptor):
			return nil, fmt.Errorf("layer %d (%s) is encrypted: decrypt the image first", i+1, l.Digest)
		case foreign(l.Descriptor) && (!keeps || c.o.Compression.indexed()):
			return nil, fmt.Errorf("layer %d (%s) must not be distributed: only --layers keep with --compression none, gzip "+
				"or zstd can leave it as it is", i+1, l.Digest)
		}
	}
	sizes := make([]int64, len(layers))
	if c.o.Layers.Mode == Split {
		err := c.each(ctx, len(layers), func(ctx context.Context, i int) (err error) {
			if sizes[i], err = c.size(ctx, layers[i]); err != nil {
				return fmt.Errorf("layer %d (%s): %w", i+1, layers[i].Digest, err)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	runs := runsOf(c.o.Layers, sizes)
	users := map[digest.Digest]int{} // of blobs: layers may be equal
	for _, l := range layers {
		users[l.Digest]++
	}
	err := c.each(ctx, len(runs), func(ctx context.Context, i int) (err error) {
		r := &runs[i]
		if keeps && !c.o.Compression.indexed() {
			if r.out, err = c.keepLayer(ctx, layers[r.first]); err != nil {
				return fmt.Errorf("layer %d (%s): %w", i+1, layers[r.first].Digest, err)
			}
			return nil
		}
		if keeps && c.o.Compression.has(layers[r.first].Descriptor) && len(c.first(layers[r.first:r.last+1])) == 0 {
			r.out, err = c.keepLayer(ctx, layers[r.first])
			return err
		}
		r.out, err = c.rewrite(ctx, layers[r.first:r.last+1], r.first == 0, c.o.Layers.Size)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, l := range layers[r.first : r.last+1] {
			if users[l.Digest]--; users[l.Digest] == 0 {
				_ = os.Remove(c.spooled(l))
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	count := 0
	for _, r := range runs {
		count += len(r.out)
	}
	if count > mostLayers && count > len(layers) {
		return nil, fmt.Errorf("the result has %d layers, and some runtimes refuse more than %d: use larger pieces than "+
			"--layers %s", count, mostLayers, c.o.Layers)
	}
	return runs, nil
}

// mostLayers is what Docker can mount.
const mostLayers = 127

// each calls f for 0 to n-1, some at once, and returns the first error.
func (c *converter) each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * cap(c.slots))
	for i := range n {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}

// annotationsFor returns the annotations of layers that replace others: those that all of them share, except those
// about their blobs.
func annotationsFor(layers []layer, own map[string]string) map[string]string {
	all := map[string]string{}
	for k, v := range layers[0].Annotations {
		same := !slices.Contains(contentAnnotations(), k)
		for _, l := range layers[1:] {
			same = same && l.Annotations[k] == v
		}
		if same {
			all[k] = v
		}
	}
	for k, v := range own {
		all[k] = v
	}
	if len(all) == 0 {
		return nil
	}
	return all
}
