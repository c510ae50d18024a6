// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/base/unzstd"
	"wangell.loutres.me/internal/images/lazy/trace"
)

// bufferSize is the size of buffers between files and streams.
const bufferSize = 256 << 10

// unpacked returns the archive in a blob, whose first bytes tell how it is compressed.
func unpacked(blob io.Reader) (io.ReadCloser, string, error) {
	in := bufio.NewReaderSize(blob, bufferSize)
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}): // RFC 1952
		r, err := kgzip.NewReader(in)
		return r, Gzip, err
	case unzstd.Is(magic):
		r, err := unzstd.NewReader(in, unzstd.StreamWindow)
		return r, Zstd, err
	}
	return io.NopCloser(in), None, nil
}

// packed is a layer of the result.
type packed struct {
	Descriptor ocispec.Descriptor `json:"descriptor"`
	DiffID     digest.Digest      `json:"diffID"`
	Unpacked   int64              `json:"unpacked"`
}

// counter counts the bytes that are written to it.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// pack compresses an archive into a file. The same archive always gives the same blob: compression runs on one core,
// because the division of work would change it.
func pack(file string, archive io.Reader, c Compression) (l packed, err error) {
	out, err := os.Create(file)
	if err != nil {
		return l, err
	}
	defer func() {
		if e := out.Close(); err == nil {
			err = e
		}
		if err != nil {
			_ = os.Remove(file)
		}
	}()
	sum, size := digest.Canonical.Digester(), &counter{}
	buffered := bufio.NewWriterSize(out, bufferSize)
	blob := io.MultiWriter(buffered, sum.Hash(), size)
	if c.indexed() {
		err = packIndexed(&l, blob, archive, c)
	} else {
		err = packPlain(&l, blob, archive, c)
	}
	if err != nil {
		return l, err
	}
	l.Descriptor.Digest, l.Descriptor.Size = sum.Digest(), size.n
	return l, buffered.Flush()
}

func packPlain(l *packed, blob io.Writer, archive io.Reader, c Compression) error {
	w, err := compressor(blob, c)
	if err != nil {
		return err
	}
	diffID, size := digest.Canonical.Digester(), &counter{}
	if _, err := io.CopyBuffer(io.MultiWriter(w, diffID.Hash(), size), onlyReader{archive},
		make([]byte, bufferSize)); err != nil {
		return err
	}
	l.DiffID, l.Unpacked = diffID.Digest(), size.n
	return w.Close()
}

// onlyReader hides other methods of a reader, so that io.CopyBuffer uses its buffer.
type onlyReader struct{ io.Reader }

func compressor(w io.Writer, c Compression) (estargz.WriteFlushCloser, error) {
	switch c.Format {
	case Gzip:
		return kgzip.NewWriterLevel(w, kgzip.DefaultCompression)
	case Zstd, ZstdChunked:
		level := c.Level
		if level == 0 {
			level = defaultZstdLevel
		}
		return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)), zstd.WithEncoderConcurrency(1))
	case EStargz:
		return gzip.NewWriterLevel(w, gzip.DefaultCompression)
	}
	return plain{w}, nil
}

// plain does not compress.
type plain struct{ io.Writer }

// Flush implements estargz.WriteFlushCloser.
func (plain) Flush() error { return nil }

// Close implements io.Closer.
func (plain) Close() error { return nil }

// indexed is a compressor of estargz that counts what it compresses. Each file is a stream of its own. All use one
// encoder, one after the other: a new one of zstd takes megabytes and milliseconds before it has compressed anything.
type indexed struct {
	estargz.Compressor
	c    Compression
	n    counter
	idle resettable // the encoder, while no stream is open
}

// resettable is an encoder that can compress another stream once it is closed.
type resettable interface {
	estargz.WriteFlushCloser
	Reset(io.Writer)
}

// Writer implements estargz.Compressor.
func (i *indexed) Writer(w io.Writer) (estargz.WriteFlushCloser, error) {
	if to := i.idle; to != nil {
		i.idle = nil
		to.Reset(w)
		return counted{to, i}, nil
	}
	to, err := compressor(w, i.c)
	return counted{to, i}, err
}

// WriteTOCAndFooter implements estargz.Compressor. eStargz's table of contents is part of the archive.
func (i *indexed) WriteTOCAndFooter(w io.Writer, off int64, toc *estargz.JTOC, h hash.Hash) (digest.Digest, error) {
	if err := checkNames(toc, i.c.Format); err != nil {
		return "", err
	}
	return i.Compressor.WriteTOCAndFooter(w, off, toc, countedHash{h, &i.n})
}

// checkNames refuses a table of contents with names that are not UTF-8: the table is JSON, which would silently have
// other names.
func checkNames(toc *estargz.JTOC, format string) error {
	for _, e := range toc.Entries {
		names := append(slices.Collect(maps.Keys(e.Xattrs)), e.Name, e.LinkName)
		for _, name := range names {
			if !utf8.ValidString(name) {
				return fmt.Errorf("/%s: %q is not UTF-8, and a file with such a name cannot be pulled lazily: "+
					"choose another compression than %s, such as zstd", strings.ToValidUTF8(e.Name, "?"), name, format)
			}
		}
	}
	return nil
}

type counted struct {
	estargz.WriteFlushCloser
	of *indexed
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.WriteFlushCloser.Write(p)
	c.of.n.n += int64(n)
	return n, err
}

// Close gives the encoder back.
func (c counted) Close() error {
	err := c.WriteFlushCloser.Close()
	if again, ok := c.WriteFlushCloser.(resettable); ok && err == nil {
		c.of.idle = again
	}
	return err
}

type countedHash struct {
	hash.Hash
	n *counter
}

func (c countedHash) Write(p []byte) (int, error) {
	c.n.n += int64(len(p))
	return c.Hash.Write(p)
}

func packIndexed(l *packed, blob io.Writer, archive io.Reader, c Compression) error {
	l.Descriptor.Annotations = map[string]string{}
	with := &indexed{c: c}
	if c.Format == EStargz {
		with.Compressor = estargz.NewGzipCompressorWithLevel(gzip.DefaultCompression)
	} else {
		with.Compressor = &zstdchunked.Compressor{
			CompressionLevel: zstd.EncoderLevelFromZstd(defaultZstdLevel), Metadata: l.Descriptor.Annotations,
		}
	}
	w := estargz.NewWriterWithCompressor(blob, with)
	if err := w.AppendTarLossLess(archive); err != nil {
		return err
	}
	toc, err := w.Close()
	if err != nil {
		return err
	}
	if l.DiffID, err = digest.Parse(w.DiffID()); err != nil {
		return err
	}
	l.Unpacked = with.n.n
	l.Descriptor.Annotations[estargz.TOCJSONDigestAnnotation] = toc.String()
	l.Descriptor.Annotations[estargz.StoreUncompressedSizeAnnotation] = fmt.Sprint(l.Unpacked)
	return nil
}

// contentAnnotations are annotations of a layer that describe its blob, and are wrong for another.
func contentAnnotations() []string {
	return []string{
		estargz.TOCJSONDigestAnnotation, estargz.StoreUncompressedSizeAnnotation, trace.Annotation,
		zstdchunked.ManifestChecksumAnnotation, zstdchunked.ManifestPositionAnnotation,
		"io.github.containers.zstd-chunked.manifest-checksum", "io.github.containers.zstd-chunked.manifest-position",
		"io.github.containers.zstd-chunked.tarsplit-position", "containerd.io/uncompressed",
	}
}
