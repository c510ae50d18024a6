// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"io"
	"slices"
	"sync"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/metadata"
	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
)

// gunzip decompresses eStargz faster than package estargz, which uses the standard library's gzip and makes a reader
// for each chunk: an image has tens of thousands of files, each of them at least one chunk.
type gunzip struct{ estargz.GzipDecompressor }

var _ metadata.Decompressor = (*gunzip)(nil)

// gzipReaders are readers of gzip that are not in use.
var gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}

// pooledReader is a reader of gzip that can be used again once it is closed.
type pooledReader struct{ *gzip.Reader }

// Close implements io.Closer.
func (r *pooledReader) Close() error {
	if r.Reader == nil {
		return nil
	}
	err := r.Reader.Close()
	gzipReaders.Put(r.Reader)
	r.Reader = nil
	return err
}

// Reader implements estargz.Decompressor.
func (*gunzip) Reader(from io.Reader) (io.ReadCloser, error) {
	r := gzipReaders.Get().(*gzip.Reader)
	if err := r.Reset(from); err != nil {
		gzipReaders.Put(r)
		return nil, err
	}
	return &pooledReader{r}, nil
}

// ParseFooter implements estargz.Decompressor.
func (g *gunzip) ParseFooter(footer []byte) (payload, toc, size int64, err error) {
	footer = slices.Clone(footer)
	unmark(footer, 0)
	return g.GzipDecompressor.ParseFooter(footer)
}

// ParseTOC implements estargz.Decompressor.
func (g *gunzip) ParseTOC(from io.Reader) (*estargz.JTOC, digest.Digest, error) {
	r, err := g.DecompressTOC(from)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	return parseTable(r, maxTable)
}

// Package estargz prefers decompressors of its own to those that it is given, by the footer of a blob. So the footer
// is marked as another one, by the bits of markBits in its byte markAt: the first one of the name of gzip's extra
// field, which only the digest of the whole blob covers.
const (
	markAt   = 12
	markBits = 0x80
)

// unmark marks the byte of a footer in p, which begins at an offset from the footer, or removes its mark.
func unmark(p []byte, from int64) {
	if i := markAt - from; i >= 0 && i < int64(len(p)) {
		p[i] ^= markBits
	}
}

// marked is an eStargz blob of a size whose footer is marked.
type marked struct {
	io.ReaderAt
	size int64
}

// ReadAt implements io.ReaderAt.
func (m marked) ReadAt(p []byte, off int64) (int, error) {
	n, err := m.ReaderAt.ReadAt(p, off)
	unmark(p[:n], off-(m.size-estargz.FooterSize))
	return n, err
}

// faster returns a blob of a size, and the option by which it is decompressed by gunzip if it is eStargz.
func faster(blob io.ReaderAt, size int64) (*io.SectionReader, metadata.Option, error) {
	gzip, err := checkTable(blob, size)
	if err != nil {
		return nil, nil, err
	}
	if gzip {
		blob = marked{blob, size}
	}
	option := metadata.WithDecompressors(new(gunzip), new(unzstd))
	return io.NewSectionReader(blob, 0, size), option, nil
}
