// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"io"
	"sync"

	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/containerd/stargz-snapshotter/metadata"
	"github.com/klauspost/compress/zstd"
)

// unzstd decompresses zstd:chunked with decoders that are used again: a new one for each chunk, as package zstdchunked
// makes them, has buffers of its own, and goroutines.
type unzstd struct{ zstdchunked.Decompressor }

var _ metadata.Decompressor = (*unzstd)(nil)

// zstdReaders are decoders that are not in use. Without concurrency they have no goroutines, and need no end.
var zstdReaders sync.Pool

// pooledDecoder is a decoder that can be used again once it is closed.
type pooledDecoder struct{ *zstd.Decoder }

// Close implements io.Closer.
func (d *pooledDecoder) Close() error {
	if d.Decoder == nil {
		return nil
	}
	err := d.Decoder.Reset(nil)
	zstdReaders.Put(d.Decoder)
	d.Decoder = nil
	return err
}

// Reader implements estargz.Decompressor.
func (*unzstd) Reader(from io.Reader) (io.ReadCloser, error) {
	if d, ok := zstdReaders.Get().(*zstd.Decoder); ok {
		return &pooledDecoder{d}, d.Reset(from)
	}
	d, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return &pooledDecoder{d}, nil
}
