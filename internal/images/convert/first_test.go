// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/lazy/trace"
)

// Files that are wanted first come first in their layer, also of layers that have the right format already. An
// annotation says where they end, and the file systems stay equal.
func TestFilesThatAreWantedComeFirst(t *testing.T) {
	host := serve(t, nil)
	from := pushed(t, host+"/first/source:v1", imageOf(t, types.OCILayer, oddLayers(t)...))
	for _, compression := range []string{EStargz, ZstdChunked} {
		t.Run(compression, func(t *testing.T) {
			plain := options(t, from, host+"/first/plain:v1", Keep, compression)
			mustRun(t, plain)
			for _, source := range []string{from, plain.Destination} {
				o := options(t, source, host+"/first/"+compression+":v1", Keep, compression)
				first := map[digest.Digest][]string{}
				o.First = func(layer digest.Digest) []string { return first[layer] }
				manifest, err := pulled(t, source).Manifest()
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range manifest.Layers {
					files := regularFiles(t, source, l.Digest.String())
					slices.Reverse(files)
					wanted := append([]string{"none/such"}, files[:(len(files)+1)/2]...)
					first[digest.Digest(l.Digest.String())] = append(wanted, wanted...)
				}
				if mustRun(t, o).Digest == mustRun(t, plain).Digest {
					t.Error("nothing has changed")
				}
				before := manifest.Layers
				if manifest, err = pulled(t, o.Destination).Manifest(); err != nil {
					t.Fatal(err)
				}
				for i, l := range manifest.Layers {
					checkFirst(t, o.Destination, l.Digest.String(), l.Annotations[trace.Annotation],
						o.First(digest.Digest(before[i].Digest.String())))
				}
			}
		})
	}
}

// blobOf returns a layer as it is in a registry.
func blobOf(t *testing.T, image, layer string) []byte {
	t.Helper()
	layers, err := pulled(t, image).Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		if d, err := l.Digest(); err != nil || d.String() != layer {
			continue
		}
		in, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		blob, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		return blob
	}
	t.Fatalf("%s has no layer %s", image, layer)
	return nil
}

// regularFiles returns the files with content in a layer.
func regularFiles(t *testing.T, image, layer string) (files []string) {
	t.Helper()
	archive, err := archiveIn(io.NopCloser(bytes.NewReader(blobOf(t, image, layer))))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	headers, err := headersOf(archive)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name := clean(h.Name)
		if h.Typeflag == tar.TypeReg && h.Size > 0 && !dropped[name] && !strings.Contains(name, whiteoutPrefix) {
			files = append(files, name)
		}
	}
	return files
}

// checkFirst checks that some files are in the first bytes of a layer, and others are not.
func checkFirst(t *testing.T, image, layer, end string, first []string) {
	t.Helper()
	blob := blobOf(t, image, layer)
	r, err := estargz.Open(io.NewSectionReader(bytes.NewReader(blob), 0, int64(len(blob))),
		estargz.WithDecompressors(new(zstdchunked.Decompressor)))
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[*estargz.TOCEntry]bool{} // hard links share one
	for _, name := range first {
		if e, ok := r.Lookup(name); ok {
			wanted[e] = true
		}
	}
	n, err := strconv.ParseInt(end, 10, 64)
	if (err == nil) != (len(wanted) > 0) {
		t.Fatalf("annotation %q for %d files: %v", end, len(wanted), err)
	}
	for _, name := range regularFiles(t, image, layer) {
		e, ok := r.Lookup(name)
		if !ok {
			t.Errorf("the table of contents lacks %s", name)
		} else if (e.Offset < n) != wanted[e] {
			t.Errorf("%s is at %d, wanted %v, and the first ones end at %d", name, e.Offset, wanted[e], n)
		}
	}
}

func TestFirstFilesNeedALayerThatCanHaveThem(t *testing.T) {
	host := serve(t, nil)
	from := pushed(t, host+"/a/source:v1", imageOf(t, types.OCILayer, oddLayers(t)...))
	for _, c := range []struct{ layers, compression, says string }{
		{Keep, Zstd, "zstd"}, {Squash, EStargz, "squash"}, {Keep, EStargz, ErrNoneFirst.Error()},
	} {
		o := options(t, from, host+"/a/result:v1", c.layers, c.compression)
		o.First = func(digest.Digest) []string { return nil }
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %s: %v", c.layers, c.compression, err)
		}
	}
}

func TestArrangeKeepsWhatBelongsTogether(t *testing.T) {
	entry := func(name string, kind byte, size int64, link string) span {
		return span{header: tar.Header{Name: name, Typeflag: kind, Size: size, Linkname: link}}
	}
	all := []span{
		entry("./", tar.TypeDir, 0, ""), entry("a/", tar.TypeDir, 0, ""), entry("a/1", tar.TypeReg, 5, ""),
		entry("b/", tar.TypeDir, 0, ""), entry("b/2", tar.TypeReg, 5, ""), entry("b/3", tar.TypeLink, 0, "b/2"),
		entry("b/4", tar.TypeSymlink, 0, "2"), entry("b/empty", tar.TypeReg, 0, ""), entry("a/.wh.x", tar.TypeReg, 0, ""),
	}
	order, last := arrange(all, []string{"b/3", "b/4", "gone", "/b/2", "b/empty"})
	var names []string
	for _, i := range order {
		names = append(names, all[i].header.Name)
	}
	want := "[./ a/ a/.wh.x b/ b/2 b/empty a/1 b/3 b/4]"
	if fmt.Sprint(names) != want || last != "b/2" {
		t.Errorf("order %v, last %q; want %s, b/2", names, last, want)
	}
}
