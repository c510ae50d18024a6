// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/containerd/stargz-snapshotter/metadata/memory"
	"github.com/klauspost/compress/zstd"
)

// packFile returns a layer with one file, packed in chunks of 1,000 bytes.
func packFile(t *testing.T, content []byte, with estargz.Compressor) []byte {
	t.Helper()
	var archive, layer bytes.Buffer
	out := tar.NewWriter(&archive)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o644, Size: int64(len(content))}
	if err := out.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	w := estargz.NewWriterWithCompressor(&layer, with)
	w.ChunkSize = 1000
	if err := w.AppendTar(&archive); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return layer.Bytes()
}

// An eStargz layer is opened with the faster decompressor only, and others as before.
func TestLayersAreDecompressedFaster(t *testing.T) {
	content := make([]byte, 3500)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	for _, c := range []struct {
		name string
		with estargz.Compressor
		ours bool
	}{
		{"estargz", estargz.NewGzipCompressor(), true},
		{"zstdchunked", &zstdchunked.Compressor{CompressionLevel: zstd.SpeedFastest}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			layer := packFile(t, content, c.with)
			packed, option, err := faster(bytes.NewReader(layer), int64(len(layer)))
			if err != nil {
				t.Fatal(err)
			}
			_, err = estargz.Open(packed, estargz.WithDecompressors(new(zstdchunked.Decompressor)))
			if ours := err != nil; ours != c.ours {
				t.Errorf("opened by other decompressors: %v", err)
			}
			r, err := memory.NewReader(packed, option)
			if err != nil {
				t.Fatal(err)
			}
			id, _, err := r.GetChild(r.RootID(), "f")
			if err != nil {
				t.Fatal(err)
			}
			nothing := func(uint32, int64, int64, string, io.Reader) error { return nil }
			f, err := r.OpenFileWithPreReader(id, nothing)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // also by readers that were used before
				for off := 0; off < len(content); off += 1000 {
					want := content[off:min(off+1000, len(content))]
					got := make([]byte, len(want))
					if _, err := f.ReadAt(got, int64(off)); err != nil && err != io.EOF || !bytes.Equal(got, want) {
						t.Errorf("the chunk at %d differs: %v", off, err)
					}
				}
			}
		})
	}
	for _, text := range []string{"", "no layer", strings.Repeat("no layer", 100)} {
		packed, option, err := faster(strings.NewReader(text), int64(len(text)))
		if err != nil {
			t.Errorf("%d bytes: %v", len(text), err)
			continue
		}
		if _, err := memory.NewReader(packed, option); err == nil {
			t.Errorf("%d bytes are a layer", len(text))
		}
	}
}

// However a marked blob is read, only the marked byte differs.
func TestOnlyAByteOfTheFooterIsMarked(t *testing.T) {
	plain := bytes.Repeat([]byte{'x'}, 2*estargz.FooterSize)
	m := marked{bytes.NewReader(plain), int64(len(plain))}
	want := bytes.Clone(plain)
	want[estargz.FooterSize+markAt] ^= markBits
	for _, size := range []int{1, 7, len(plain)} {
		var got []byte
		for off := 0; off < len(plain); off += size {
			p := make([]byte, size)
			n, err := m.ReadAt(p, int64(off))
			if err != nil && err != io.EOF {
				t.Fatal(err)
			}
			got = append(got, p[:n]...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("read %d bytes at a time: %q", size, got)
		}
	}
}

// Windows are the memory that a decoder takes before it has seen any content.
func TestLargeWindowsOfChunksAreRefused(t *testing.T) {
	frame := func(log int) io.Reader {
		return bytes.NewReader(append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, byte((log - 10) << 3), 2<<3 | 1, 0, 0}, "{}"...))
	}
	read := func(r io.ReadCloser, err error) (string, error) {
		if err != nil {
			return "", err
		}
		defer r.Close()
		got, err := io.ReadAll(r)
		return string(got), err
	}
	u := new(unzstd)
	for name, open := range map[string]func(io.Reader) (string, error){
		"chunk": func(r io.Reader) (string, error) { return read(u.Reader(r)) },
		"table": func(r io.Reader) (string, error) { return read(u.DecompressTOC(r)) },
		"parsed table": func(r io.Reader) (string, error) {
			_, _, err := u.ParseTOC(r)
			return "{}", err
		},
	} {
		if got, err := open(frame(25)); err != nil || got != "{}" {
			t.Errorf("%s: window of 32 MiB: %q, %v", name, got, err)
		}
		if _, err := open(frame(26)); !errors.Is(err, zstd.ErrWindowSizeExceeded) {
			t.Errorf("%s: window of 64 MiB: %v, want a refusal", name, err)
		}
		if got, err := open(frame(25)); err != nil || got != "{}" { // a refusal must not spoil the next one
			t.Errorf("%s: after a refusal: %q, %v", name, got, err)
		}
	}
}
