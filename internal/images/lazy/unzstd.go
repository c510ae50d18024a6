// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"io"
	"sync"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/containerd/stargz-snapshotter/metadata"
	"github.com/opencontainers/go-digest"

	zstd "wangell.loutres.me/internal/base/unzstd"
)

// unzstd decompresses zstd:chunked with decoders that are used again: a new one for each chunk, as package zstdchunked
// makes them, has buffers of its own, and goroutines, and accepts windows of 512 MiB.
type unzstd struct{ zstdchunked.Decompressor }

var _ metadata.Decompressor = (*unzstd)(nil)

// zstdReaders are readers that are not in use.
var zstdReaders sync.Pool

// pooledDecoder is a reader that can be used again once it is closed.
type pooledDecoder struct{ *zstd.Reader }

// Close implements io.Closer.
func (d *pooledDecoder) Close() error {
	if d.Reader == nil {
		return nil
	}
	err := d.Reset(nil)
	zstdReaders.Put(d.Reader)
	d.Reader = nil
	return err
}

// Reader implements estargz.Decompressor.
func (*unzstd) Reader(from io.Reader) (io.ReadCloser, error) {
	if d, ok := zstdReaders.Get().(*zstd.Reader); ok {
		return &pooledDecoder{d}, d.Reset(from)
	}
	d, err := zstd.NewReader(from, zstd.ChunkWindow)
	if err != nil {
		return nil, err
	}
	return &pooledDecoder{d}, nil
}

// ParseTOC implements estargz.Decompressor.
func (u *unzstd) ParseTOC(from io.Reader) (*estargz.JTOC, digest.Digest, error) {
	r, err := u.Reader(from)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	return parseTable(r, maxTable)
}

// DecompressTOC implements estargz.Decompressor.
func (u *unzstd) DecompressTOC(from io.Reader) (io.ReadCloser, error) { return u.Reader(from) }
