// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/klauspost/compress/zstd"
)

// sized is a layer that is mostly zeros in front of its end.
type sized struct {
	end  []byte
	size int64
}

// ReadAt implements io.ReaderAt.
func (s sized) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if from := s.size - int64(len(s.end)) - off; from >= 0 && from < int64(len(p)) {
		copy(p[from:], s.end)
	}
	return len(p), nil
}

// A footer cannot have the snapshotter read or allocate more than a table of contents needs.
func TestTablesOfContentsAreWithinTheirLayers(t *testing.T) {
	zstdLayer := packFile(t, []byte("x"), &zstdchunked.Compressor{CompressionLevel: zstd.SpeedFastest})
	gzipLayer := packFile(t, []byte("x"), estargz.NewGzipCompressor())
	for name, layer := range map[string][]byte{"zstd:chunked": zstdLayer, "eStargz": gzipLayer} {
		gzip, err := checkTable(bytes.NewReader(layer), int64(len(layer)))
		if err != nil || gzip != (name == "eStargz") {
			t.Errorf("%s: gzip %t, %v", name, gzip, err)
		}
	}
	footer := func(at, length uint64) []byte {
		f := bytes.Clone(zstdLayer[len(zstdLayer)-zstdchunked.FooterSize:])
		binary.LittleEndian.PutUint64(f, at)
		binary.LittleEndian.PutUint64(f[8:], length)
		return f
	}
	gzipFooter := gzipLayer[len(gzipLayer)-estargz.FooterSize:] // the table begins a few bytes into the layer
	for _, c := range []struct {
		name string
		end  []byte
		size int64
		fits bool
	}{
		{"the whole layer", footer(0, 1<<20-zstdchunked.FooterSize), 1 << 20, true},
		{"one byte more", footer(0, 1<<20-zstdchunked.FooterSize+1), 1 << 20, false},
		{"nothing", footer(1<<20-zstdchunked.FooterSize, 0), 1 << 20, false},
		{"a negative length", footer(0, 1<<63), 1 << 20, false},
		{"a negative beginning", footer(1<<63, 100), 1 << 20, false},
		{"a sum that overflows", footer(1<<19, 1<<63-1), 1 << 20, false},
		{"as large as may be", footer(0, maxPackedTable), 1 << 40, true},
		{"too large", footer(0, maxPackedTable+1), 1 << 40, false},
		{"gzip up to the footer, too large", gzipFooter, 1 << 40, false},
	} {
		_, err := checkTable(sized{c.end, c.size}, c.size)
		if fits := err == nil; fits != c.fits || err != nil && !errors.Is(err, errTable) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, _, err := faster(sized{c.end, c.size}, c.size); errors.Is(err, errTable) == c.fits {
			t.Errorf("%s is opened: %v", c.name, err)
		}
	}
}

// A small table of contents may become a large one once it is decompressed.
func TestTablesOfContentsAreLimited(t *testing.T) {
	table := `{"version":1,"entries":[{"name":"a","type":"reg"}]}`
	if toc, sum, err := parseTable(strings.NewReader(table), int64(len(table))); err != nil || len(toc.Entries) != 1 ||
		sum == "" {
		t.Errorf("%v, %v", toc, err)
	}
	if _, _, err := parseTable(strings.NewReader(table), int64(len(table))-1); !errors.Is(err, errTable) {
		t.Errorf("beyond the limit: %v", err)
	}
	if _, _, err := parseTable(strings.NewReader("{"), 100); err == nil || errors.Is(err, errTable) {
		t.Errorf("no JSON: %v", err)
	}
}
