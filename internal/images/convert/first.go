// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
)

// span is an entry of an archive: its headers, its content and what fills the last block.
type span struct {
	header   tar.Header
	from, to int64
}

// counting counts the bytes that are read.
type counting struct {
	io.Reader
	n int64
}

// Read implements io.Reader.
func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// spansOf returns the entries of an archive.
func spansOf(archive io.Reader) ([]span, error) {
	from := &counting{Reader: archive}
	in := tar.NewReader(from)
	var all []span
	end := int64(0)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		s := span{*h, end, from.n}
		if h.Typeflag == tar.TypeReg {
			s.to += (h.Size + block - 1) / block * block
		}
		all, end = append(all, s), s.to
	}
}

// arrange returns the order of the entries of an archive in which files come first: whiteouts, the files with the
// directories that they are in, and everything else as it was. last is the last of the files that has content; empty if
// the archive has none of them.
func arrange(all []span, first []string) (order []int, last string) {
	at := map[string]int{}
	for i, s := range all {
		at[clean(s.header.Name)] = i
	}
	taken := make([]bool, len(all))
	take := func(i int) {
		if !taken[i] {
			taken[i] = true
			order = append(order, i)
		}
	}
	withParents := func(i int) {
		var parents []int
		for dir := path.Dir(clean(all[i].header.Name)); ; dir = path.Dir(dir) {
			if dir == "." {
				dir = ""
			}
			if p, ok := at[dir]; ok && all[p].header.Typeflag == tar.TypeDir {
				parents = append(parents, p)
			}
			if dir == "" {
				break
			}
		}
		slices.Reverse(parents)
		for _, p := range parents {
			take(p)
		}
		take(i)
	}
	for i, s := range all {
		if strings.HasPrefix(path.Base(clean(s.header.Name)), whiteoutPrefix) {
			withParents(i)
		}
	}
	for _, name := range first {
		i, ok := at[clean(name)]
		if ok && all[i].header.Typeflag == tar.TypeLink {
			i, ok = at[clean(all[i].header.Linkname)]
		}
		if !ok || all[i].header.Typeflag != tar.TypeReg || taken[i] {
			continue
		}
		withParents(i)
		if all[i].header.Size > 0 {
			last = clean(all[i].header.Name)
		}
	}
	for i := range all {
		take(i)
	}
	return order, last
}

// firstFirst returns an archive in which some files come first, and the last of these with content. The archive reads
// from the file.
func firstFirst(archive *os.File, first []string) (_ io.Reader, last string, err error) {
	all, err := spansOf(archive)
	if err != nil {
		return nil, "", err
	}
	order, last := arrange(all, first)
	parts := make([]io.Reader, 0, len(order)+1)
	for _, i := range order {
		parts = append(parts, io.NewSectionReader(archive, all[i].from, all[i].to-all[i].from))
	}
	return io.MultiReader(append(parts, strings.NewReader(strings.Repeat("\x00", 2*block)))...), last, nil
}

// endOf returns where the content of a file ends in a layer with a table of contents, in bytes from the beginning.
func endOf(layer, name string) (int64, error) {
	f, err := os.Open(layer)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	r, err := estargz.Open(io.NewSectionReader(f, 0, info.Size()),
		estargz.WithDecompressors(new(zstdchunked.Decompressor)))
	if err != nil {
		return 0, err
	}
	e, ok := r.Lookup(name)
	if !ok {
		return 0, fmt.Errorf("the layer's table of contents lacks %s", name)
	}
	c, ok := r.ChunkEntryForOffset(name, e.Size-1)
	if !ok {
		return 0, fmt.Errorf("the layer's table of contents lacks the end of %s", name)
	}
	return c.NextOffset(), nil
}
