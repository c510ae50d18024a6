// SPDX-License-Identifier: Apache-2.0

// Package convert rewrites the layers of an image so that they are fetched and unpacked faster: with another
// compression, joined, or cut into pieces that can be unpacked in parallel. The file system of the image stays as it
// is.
package convert

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Ways to arrange layers.
const (
	// Keep has one layer for each layer of the source.
	Keep = "keep"
	// Squash has one layer for all.
	Squash = "squash"
	// Split has layers of about Layers.Size: larger ones are cut, smaller neighbours are joined.
	Split = "split"
)

// Layers selects how the layers of the result are arranged.
type Layers struct {
	Mode string
	// Size is the most bytes of a layer in mode Split, unpacked.
	Size int64
}

// leastSize is the least size of a piece: each piece costs a snapshot.
const leastSize = 64 << 10

// ParseLayers parses keep, squash or split=SIZE, such as split=64MB.
func ParseLayers(text string) (Layers, error) {
	mode, size, sized := strings.Cut(text, "=")
	switch {
	case (mode == Keep || mode == Squash) && !sized:
		return Layers{Mode: mode}, nil
	case mode == Split && sized:
		n, err := parseSize(size)
		if err != nil {
			return Layers{}, err
		}
		return Layers{Mode: Split, Size: n}, nil
	case mode == Split:
		return Layers{}, fmt.Errorf("%q lacks the size of a layer: write split=64MB", text)
	}
	return Layers{}, fmt.Errorf("%q: want keep, squash or split=SIZE", text)
}

// String returns the text that ParseLayers parses.
func (l Layers) String() string {
	if l.Mode == Split {
		return fmt.Sprintf("%s=%d", l.Mode, l.Size)
	}
	return l.Mode
}

// units of sizes. Longer ones come before their ends.
var units = []struct {
	name  string
	bytes float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9},
	{"k", 1e3}, {"m", 1e6}, {"g", 1e9}, {"b", 1}, {"", 1},
}

func parseSize(text string) (int64, error) {
	lower := strings.ToLower(strings.TrimSpace(text))
	for _, u := range units {
		number, ok := strings.CutSuffix(lower, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || math.IsNaN(n) || n*u.bytes > 1e15 {
			break
		}
		if n*u.bytes < leastSize {
			return 0, fmt.Errorf("size %q is too small: want 64KiB or more", text)
		}
		return int64(n * u.bytes), nil
	}
	return 0, fmt.Errorf("size %q: want a number with a unit, such as 64MB or 32MiB", text)
}

// Formats of layers.
const (
	None        = "none"
	Gzip        = "gzip"
	Zstd        = "zstd"
	EStargz     = "estargz"
	ZstdChunked = "zstdchunked"
)

// Compressions are the formats of layers, as ParseCompression knows them.
var Compressions = []string{None, Gzip, Zstd, EStargz, ZstdChunked}

// defaultZstdLevel is the level of the zstd program.
const defaultZstdLevel = 3

// Compression is a format of layers.
type Compression struct {
	Format string
	// Level is the level of Zstd, 1 to 22; 0 means the default, and that layers with this format are not compressed
	// again.
	Level int
}

// ParseCompression parses one of Compressions; zstd may be followed by a colon and a level.
func ParseCompression(text string) (Compression, error) {
	format, level, leveled := strings.Cut(text, ":")
	for _, known := range Compressions {
		switch {
		case format != known:
		case !leveled:
			return Compression{Format: format}, nil
		case format != Zstd:
			return Compression{}, fmt.Errorf("%q: only zstd has levels", text)
		default:
			n, err := strconv.Atoi(level)
			if err != nil || n < 1 || n > 22 {
				return Compression{}, fmt.Errorf("%q: want a level of zstd from 1 to 22", text)
			}
			return Compression{Format: Zstd, Level: n}, nil
		}
	}
	return Compression{}, fmt.Errorf("unknown compression %q: want none, gzip, zstd[:LEVEL], estargz or zstdchunked", text)
}

// String returns the text that ParseCompression parses.
func (c Compression) String() string {
	if c.Level != 0 {
		return fmt.Sprintf("%s:%d", c.Format, c.Level)
	}
	return c.Format
}

// indexed reports whether layers have a table of contents, for lazy pulling.
func (c Compression) indexed() bool { return c.Format == EStargz || c.Format == ZstdChunked }

// Options says what to convert, and how.
type Options struct {
	// Source and Destination are references, or paths of tarballs.
	Source, Destination string
	Layers              Layers
	Compression         Compression
	// First returns the files of a source layer that should come first in the layer that replaces it, in order, as
	// paths from the root. Only for Keep, and compressions with a table of contents. It may be nil.
	First func(layer digest.Digest) []string
	// Platforms are those to convert, as OS/ARCHITECTURE[/VARIANT]; empty: all.
	Platforms []string
	// Tag is the name of the image in a tarball. Empty: the source's.
	Tag string
	// Verify compares the file systems of the source and the result before the result gets its name.
	Verify bool
	// Resume is a folder in which finished layers are kept when Run fails, for the next Run. Empty: a temporary folder.
	Resume string
	// Insecure are registries accessed over plain HTTP, as HOST or HOST:PORT. Those on this machine always are.
	Insecure []string
	// Progress is called with the stage and the number of its bytes that are done. It may be nil.
	Progress func(stage string, done, total int64)
}
