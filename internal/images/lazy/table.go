// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/opencontainers/go-digest"
)

// Limits of a layer's table of contents, which is read into memory whole. A file takes about 47 bytes of the one and
// 330 of the other, so there is room for a million files.
const (
	maxPackedTable = 64 << 20  // compressed, bytes
	maxTable       = 512 << 20 // as JSON, bytes
)

// errTable is why a layer is not mounted: its table of contents is none, or is too large.
var errTable = errors.New("its table of contents is not usable: it is pulled whole")

// checkTable refuses a layer of a size in bytes by where its footer says that the table of contents is. Package estargz
// allocates what a footer asks for. It reports whether the footer is that of eStargz.
func checkTable(layer io.ReaderAt, size int64) (gzip bool, err error) {
	for _, d := range []estargz.Decompressor{
		new(estargz.GzipDecompressor), new(estargz.LegacyGzipDecompressor), new(zstdchunked.Decompressor),
	} {
		from := size - d.FooterSize()
		if from < 0 {
			continue
		}
		footer := make([]byte, d.FooterSize())
		if _, err := layer.ReadAt(footer, from); err != nil && err != io.EOF {
			return false, err
		}
		_, at, length, err := d.ParseFooter(footer)
		if err != nil {
			continue
		}
		if _, legacy := d.(*estargz.LegacyGzipDecompressor); legacy {
			return false, fmt.Errorf("%w: it has the format of stargz, not of eStargz", errTable)
		}
		if length == 0 {
			length = from - at // up to the footer
		}
		switch {
		case at < 0 || at > from || length <= 0 || length > from-at:
			return false, fmt.Errorf("%w: %d bytes from byte %d are not in a layer of %d", errTable, length, at, size)
		case length > maxPackedTable:
			return false, fmt.Errorf("%w: it has %d bytes, at most %d are read", errTable, length, maxPackedTable)
		}
		_, gzip = d.(*estargz.GzipDecompressor)
		return gzip, nil
	}
	return false, nil // package estargz finds no table either
}

// parseTable decodes a table of contents of at most limit bytes of JSON. It returns its digest as well.
func parseTable(r io.Reader, limit int64) (*estargz.JTOC, digest.Digest, error) {
	sum, toc := digest.Canonical.Digester(), new(estargz.JTOC)
	left := &io.LimitedReader{R: r, N: limit + 1}
	err := json.NewDecoder(io.TeeReader(left, sum.Hash())).Decode(toc)
	switch {
	case left.N <= 0:
		return nil, "", fmt.Errorf("%w: it has more than %d bytes", errTable, limit)
	case err != nil:
		return nil, "", fmt.Errorf("table of contents: %w", err)
	}
	return toc, sum.Digest(), nil
}
