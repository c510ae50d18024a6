// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/containerd/stargz-snapshotter/metadata/memory"
	"github.com/klauspost/compress/zstd"
)

// A layer whose table has other names than its archive would be another file system, without an error.
func TestLayersWithNamesThatATableCannotHaveAreNotMounted(t *testing.T) {
	regular := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name} }
	for _, c := range []struct {
		header *tar.Header
		bad    bool
	}{
		{regular("caf\u00e9"), false}, {regular("d/e/plain"), false},
		{regular("caf\xe9"), true}, {regular("d/caf\xe9/f"), true},
		{&tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "caf\xe9"}, true},
		{&tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "caf\u00e9"}, false},
	} {
		for _, with := range []estargz.Compressor{
			estargz.NewGzipCompressorWithLevel(gzip.BestSpeed),
			&zstdchunked.Compressor{CompressionLevel: zstd.SpeedFastest},
		} {
			var archive, layer bytes.Buffer
			out := tar.NewWriter(&archive)
			if err := errors.Join(out.WriteHeader(c.header), out.Close()); err != nil {
				t.Fatal(err)
			}
			w := estargz.NewWriterWithCompressor(&layer, with)
			if err := w.AppendTar(&archive); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Close(); err != nil {
				t.Fatal(err)
			}
			packed, option, err := faster(bytes.NewReader(layer.Bytes()), int64(layer.Len()))
			if err != nil {
				t.Fatal(err)
			}
			tree, err := memory.NewReader(packed, option)
			if err != nil {
				t.Fatal(err)
			}
			if err := checkNames(tree); errors.Is(err, errName) != c.bad || !c.bad && err != nil {
				t.Errorf("%q to %q in %T: %v", c.header.Name, c.header.Linkname, with, err)
			}
		}
	}
}
