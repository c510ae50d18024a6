// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"wangell.loutres.me/internal/images/lazy/trace"
)

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

// keepLayer returns the layer of the result for a single layer of the source, whose archive stays as it is.
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
	group.SetLimit(2 * cap(c.slots)) // bounds the archives of pieces that wait on disk
	w := &writer{plan: plan, dir: c.work.path(workSpool), done: func(piece int, file string) error {
		if ctx.Err() != nil { // the group has the error
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
