// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"wangell.loutres.me/internal/lazy/trace"
)

// layer is a layer of the source.
type layer struct {
	ocispec.Descriptor
	diffID digest.Digest
}

// run is a number of neighbouring layers of the source that become layers of the result together.
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

// version is part of the keys of records. Increment it when the same layers give other results.
const version = 1

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

// once does what a key stands for once, although several layers of an image may be equal.
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

// recorded returns the layers that an earlier conversion made, if all of them are delivered or can be.
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

// deliver delivers a blob in a file, which is gone afterwards.
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

// packInto compresses an archive and delivers it.
func (c *converter) packInto(ctx context.Context, archive io.Reader) (packed, error) {
	return c.packWith(ctx, archive, func(string, map[string]string) error { return nil })
}

// packFirst is packInto for an archive in which some files come first. An annotation says where they end.
func (c *converter) packFirst(ctx context.Context, archive *os.File, first []string) (packed, error) {
	arranged, last, err := firstFirst(archive, first)
	if err != nil {
		return packed{}, err
	}
	return c.packWith(ctx, arranged, func(file string, annotations map[string]string) error {
		if last == "" {
			return nil
		}
		end, err := endOf(file, last)
		annotations[trace.Annotation] = fmt.Sprint(end)
		return err
	})
}

// packWith compresses an archive and delivers it. Before that, annotate may add to the annotations of the layer in a
// file.
func (c *converter) packWith(ctx context.Context, archive io.Reader,
	annotate func(file string, annotations map[string]string) error) (packed, error) {
	file, err := c.spool()
	if err != nil {
		return packed{}, err
	}
	p, err := pack(file, contextReader{ctx, archive}, c.o.Compression)
	if err == nil {
		err = annotate(file, p.Descriptor.Annotations)
	}
	if err != nil {
		return p, err
	}
	return p, c.deliver(ctx, p.Descriptor, file)
}

// contextReader fails after its context has ended.
type contextReader struct {
	ctx context.Context
	io.Reader
}

// Read implements io.Reader.
func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// opened is the archive of a layer, and the blob that it is in.
type opened struct {
	io.ReadCloser
	blob io.ReadCloser
}

// Close implements io.Closer. It fails if the blob has another digest than it should.
func (o opened) Close() error {
	_, err := io.Copy(io.Discard, o.blob) // what follows the archive counts for the digest
	o.ReadCloser.Close()
	if e := o.blob.Close(); err == nil {
		err = e
	}
	return err
}

// archiveIn returns the archive of a blob.
func archiveIn(blob io.ReadCloser) (io.ReadCloser, error) {
	archive, _, err := unpacked(blob)
	if err != nil {
		blob.Close()
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return opened{archive, blob}, nil
}

// keepLayer returns the layer of the result for a single one of the source, whose archive stays as it is.
func (c *converter) keepLayer(ctx context.Context, l layer) ([]packed, error) {
	as := packed{Descriptor: l.Descriptor, DiffID: l.diffID}
	switch {
	case foreign(l.Descriptor):
		c.count.add(l.Size)
		return []packed{as}, nil
	case c.o.Compression.has(l.Descriptor):
		if l.MediaType == c.types(l).none {
			as.Unpacked = l.Size
		}
		return c.once("copy "+l.Digest.String(), func() ([]packed, error) {
			c.count.add(l.Size)
			return []packed{as}, c.to.copy(ctx, c.from, l.Descriptor)
		})
	}
	key := fmt.Sprint(version, " keep ", c.o.Compression, " ", l.Digest)
	return c.once(key, func() ([]packed, error) {
		if out, ok := c.recorded(ctx, key); ok {
			c.count.add(l.Size)
			c.known(l.Digest, out[0].Unpacked)
			return out, nil
		}
		release, err := c.slot(ctx)
		if err != nil {
			return nil, err
		}
		defer release()
		blob, err := c.from.open(ctx, l.Descriptor)
		if err != nil {
			return nil, err
		}
		archive, err := archiveIn(c.count.reader(blob))
		if err != nil {
			return nil, err
		}
		p, err := c.packInto(ctx, archive)
		if e := archive.Close(); err == nil {
			err = e
		}
		if err != nil {
			return nil, err
		}
		if p.DiffID != l.diffID {
			return nil, fmt.Errorf("its content has the digest %s, and the image's configuration says %s: the image is damaged",
				p.DiffID, l.diffID)
		}
		c.known(l.Digest, p.Unpacked)
		return []packed{p}, c.work.remember(key, []packed{p})
	})
}

func (c *converter) types(l layer) mediaTypes {
	if strings.HasPrefix(l.MediaType, "application/vnd.docker.") {
		return dockerTypes
	}
	return ociTypes
}

func (c *converter) known(d digest.Digest, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unpacked[d] = size
}

// size returns the size of the archive of a layer, which may have to be read for it.
func (c *converter) size(ctx context.Context, l layer) (int64, error) {
	key := fmt.Sprint(version, " size ", l.Digest)
	var size int64
	if !c.work.recall(key, &size) {
		archive, err := c.archive(ctx, l)
		if err != nil {
			return 0, err
		}
		sum, n := digest.Canonical.Digester(), &counter{}
		_, err = io.Copy(io.MultiWriter(sum.Hash(), n), contextReader{ctx, archive})
		if e := archive.Close(); err == nil {
			err = e
		}
		switch {
		case err != nil:
			return 0, err
		case sum.Digest() != l.diffID:
			return 0, fmt.Errorf("its content has the digest %s, and the image's configuration says %s: the image is damaged",
				sum.Digest(), l.diffID)
		}
		size = n.n
		if err := c.work.remember(key, size); err != nil {
			return 0, err
		}
	} else {
		c.count.add(l.Size)
	}
	c.known(l.Digest, size)
	return size, nil
}

// spooled returns the file of a layer's blob.
func (c *converter) spooled(l layer) string { return c.work.path(workSpool, l.Digest.Encoded()) }

// archive returns the archive of a layer, whose blob is downloaded first, since it is read several times.
func (c *converter) archive(ctx context.Context, l layer) (io.ReadCloser, error) {
	file := c.spooled(l)
	if _, err := os.Stat(file); err != nil {
		if err := download(ctx, c.from, l.Descriptor, c.work.path(workSpool), file); err != nil {
			return nil, err
		}
	}
	blob, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	return archiveIn(c.count.reader(blob))
}

// rewrite returns the layers of the result for a run of layers of the source: at most size bytes each; 0: one layer.
func (c *converter) rewrite(ctx context.Context, layers []layer, bottom bool, size int64) ([]packed, error) {
	names := make([]string, len(layers))
	for i, l := range layers {
		names[i] = l.Digest.String()
	}
	key := fmt.Sprint(version, " rewrite ", c.o.Compression, " ", size, " ", bottom, " ", strings.Join(names, " "))
	if first := c.first(layers); len(first) > 0 {
		key += " first " + digest.FromString(strings.Join(first, "\x00")).String()
	}
	return c.once(key, func() ([]packed, error) {
		if out, ok := c.recorded(ctx, key); ok {
			for _, l := range layers {
				c.count.add(2 * l.Size)
			}
			return out, nil
		}
		out, err := c.rewriteNow(ctx, layers, bottom, size)
		if err != nil {
			return nil, err
		}
		return out, c.work.remember(key, out)
	})
}

func (c *converter) rewriteNow(ctx context.Context, layers []layer, bottom bool, size int64) ([]packed, error) {
	root := newRoot()
	var archives []func() (io.ReadCloser, error)
	for i, l := range layers {
		archive, err := c.archive(ctx, l)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.Digest, err)
		}
		headers, err := headersOf(contextReader{ctx, archive})
		if e := archive.Close(); err == nil {
			err = e
		}
		if err == nil {
			err = root.apply(i, headers)
		}
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.Digest, err)
		}
		archives = append(archives, func() (io.ReadCloser, error) {
			archive, err := c.archive(ctx, l)
			return contextArchive{contextReader{ctx, archive}, archive}, err
		})
	}
	plan := cut(root, bottom, size)
	if !bottom && len(plan.bare()) > 0 && len(layers) > 1 {
		return c.rewriteEach(ctx, layers, size)
	}
	out := make([]packed, plan.count)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2 * cap(c.slots)) // archives of pieces that wait on the disk
	w := &writer{plan: plan, dir: c.work.path(workSpool), done: func(piece int, file string) error {
		if ctx.Err() != nil { // what failed is in the group
			os.Remove(file)
			return ctx.Err()
		}
		group.Go(func() error {
			defer os.Remove(file)
			release, err := c.slot(ctx)
			if err != nil {
				return err
			}
			defer release()
			f, err := os.Open(file)
			if err != nil {
				return err
			}
			defer f.Close()
			if first := c.first(layers); len(first) > 0 {
				out[piece], err = c.packFirst(ctx, f, first)
			} else {
				out[piece], err = c.packInto(ctx, f)
			}
			return err
		})
		return nil
	}}
	err := w.write(archives)
	if e := group.Wait(); e != nil {
		err = e
	}
	return out, err
}

// first returns the files that come first in the layers of a run.
func (c *converter) first(layers []layer) []string {
	if c.o.First == nil {
		return nil
	}
	var all []string
	for _, l := range layers {
		all = append(all, c.o.First(l.Digest)...)
	}
	return all
}

// rewriteEach rewrites layers that cannot be joined.
func (c *converter) rewriteEach(ctx context.Context, layers []layer, size int64) ([]packed, error) {
	var all []packed
	for i := range layers {
		out, err := c.rewriteNow(ctx, layers[i:i+1], false, size)
		if err != nil {
			return nil, err
		}
		all = append(all, out...)
	}
	return all, nil
}

// contextArchive is an archive that cannot be read any more after a context has ended.
type contextArchive struct {
	io.Reader
	io.Closer
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

// annotationsFor returns the annotations of layers that replace others: what all of those say, unless it is about their
// blobs.
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
