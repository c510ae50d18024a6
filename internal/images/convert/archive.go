// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// layer is a layer of the source.
type layer struct {
	ocispec.Descriptor
	diffID digest.Digest
}

// version is part of the keys of records. Increment it when the same layers give other results.
const version = 1

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

func (c *converter) known(d digest.Digest, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unpacked[d] = size
}

// size returns the size of the archive of a layer, and reads the layer if necessary.
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

// contextArchive is an archive that cannot be read after a context has ended.
type contextArchive struct {
	io.Reader
	io.Closer
}
