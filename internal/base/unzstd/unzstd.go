// SPDX-License-Identifier: Apache-2.0

// Package unzstd decompresses zstd (RFC 8878) from sources that are not trusted. Fourteen bytes of a frame's header can
// make a decoder allocate a window of terabytes; decoders of this package refuse windows that no layer or backup needs.
package unzstd

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/klauspost/compress/zstd"
)

// The largest windows that are accepted, in bytes.
const (
	// StreamWindow is for whole layers and backups. It is what zstd(1) decompresses without being told to use more
	// memory, and compresses to at its highest level.
	StreamWindow = 128 << 20
	// ChunkWindow is for the chunks of a lazily pulled layer, of which many are decompressed at once. It is the most that
	// the encoders of containerd's stargz-snapshotter, Podman and BuildKit use.
	ChunkWindow = 32 << 20
)

// magicSize is the number of bytes that tell whether a stream is zstd.
const magicSize = 4

// Is reports whether a stream with these first bytes is zstd: it starts with a frame, or with a skippable frame.
func Is(start []byte) bool {
	if len(start) < magicSize {
		return false
	}
	return bytes.Equal(start[:magicSize], []byte{0x28, 0xb5, 0x2f, 0xfd}) ||
		start[0]&0xf0 == 0x50 && bytes.Equal(start[1:magicSize], []byte{0x2a, 0x4d, 0x18})
}

// Reader decompresses a stream on the goroutine that reads, with a largest window. It needs no end, and can be used
// again by Reset.
type Reader struct {
	decoder *zstd.Decoder
	window  uint64
}

// NewReader returns a reader of from, which may be nil until Reset, that refuses frames with a window of more than so
// many bytes.
func NewReader(from io.Reader, window uint64) (*Reader, error) {
	d, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return nil, err
	}
	return &Reader{d, window}, nil
}

// Reset starts to decompress another stream; nil gives the last one back.
func (r *Reader) Reset(from io.Reader) error { return r.decoder.Reset(from) }

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	n, err := r.decoder.Read(p)
	return n, r.explain(err)
}

// WriteTo implements io.WriterTo.
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	n, err := r.decoder.WriteTo(w)
	return n, r.explain(err)
}

// Close implements io.Closer.
func (r *Reader) Close() error {
	r.decoder.Close()
	return nil
}

func (r *Reader) explain(err error) error {
	if !errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return err
	}
	return fmt.Errorf("%w: its zstd needs a window of more than %d MiB: compress it again without --long, or with "+
		"--long=%d at most", err, r.window>>20, log2(r.window))
}

func log2(n uint64) (log int) {
	for ; n > 1; n >>= 1 {
		log++
	}
	return log
}

// stream is a stream of zstd as containerd's package has it.
type stream struct{ *Reader }

// GetCompression implements compression.DecompressReadCloser.
func (stream) GetCompression() compression.Compression { return compression.Zstd }

// Decompress decompresses a stream as compression.DecompressStream does, whose decoder of zstd accepts windows of
// 512 MiB.
func Decompress(from io.Reader) (compression.DecompressReadCloser, error) {
	start := make([]byte, magicSize)
	n, err := io.ReadFull(from, start)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	whole := io.MultiReader(bytes.NewReader(start[:n]), from)
	if !Is(start[:n]) {
		return compression.DecompressStream(whole)
	}
	r, err := NewReader(whole, StreamWindow)
	if err != nil {
		return nil, err
	}
	return stream{r}, nil
}
