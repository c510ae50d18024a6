// SPDX-License-Identifier: Apache-2.0

package live

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// Layers of the image of the tests.
const (
	filesPerLayer = 100
	thinBytes     = 4 << 20 // unpacked
	fatBytes      = 36 << 20
	fat           = 4 // number of the fat layer
)

// layer is a layer whose blob and archive are in memory.
type layer struct {
	packed, plain []byte
	mediaType     types.MediaType
}

func (l layer) Digest() (v1.Hash, error)            { return v1.NewHash(digest.FromBytes(l.packed).String()) }
func (l layer) DiffID() (v1.Hash, error)            { return v1.NewHash(digest.FromBytes(l.plain).String()) }
func (l layer) Size() (int64, error)                { return int64(len(l.packed)), nil }
func (l layer) MediaType() (types.MediaType, error) { return l.mediaType, nil }
func (l layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.packed)), nil
}
func (l layer) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.plain)), nil
}

// tarOf returns an archive of a number of bytes in files that compress to about a half.
func tarOf(t testing.TB, seed uint64, size int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	random := rand.NewChaCha8([32]byte{byte(seed)})
	raw := make([]byte, size/filesPerLayer/2)
	for i := range filesPerLayer {
		_, _ = random.Read(raw)
		text := hex.AppendEncode(nil, raw)
		h := &tar.Header{Name: fmt.Sprintf("layer%d/file%d", seed, i), Typeflag: tar.TypeReg, Mode: 0o644,
			Size: int64(len(text))}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// packedLayer returns a layer with a compression: gzip, zstd or none.
func packedLayer(t testing.TB, compression string, plain []byte) layer {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch compression {
	case "none":
		return layer{plain, plain, types.OCIUncompressedLayer}
	case "zstd":
		w, err = zstd.NewWriter(&out)
	default:
		w, err = gzip.NewWriterLevel(&out, gzip.BestSpeed)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	mediaType := types.OCILayer
	if compression == "zstd" {
		mediaType = types.OCILayerZStd
	}
	return layer{out.Bytes(), plain, mediaType}
}

// compressions of the layers of the image of the tests.
var compressions = []string{"gzip", "zstd", "none", "gzip"}

// made is the image of the tests, which takes a while to compress, and the sizes of its layers' archives.
var made struct {
	once  sync.Once
	image v1.Image
	sizes []int64
}

// testImage returns an image with a layer for each of the compressions, of which one is fat, and the sizes of the
// layers' archives.
func testImage(t testing.TB) (v1.Image, []int64) {
	t.Helper()
	made.once.Do(func() { made.image, made.sizes = makeImage(t) })
	if made.image == nil {
		t.Fatal("the image of the tests could not be made")
	}
	return made.image, made.sizes
}

func makeImage(t testing.TB) (v1.Image, []int64) {
	t.Helper()
	var sizes []int64
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	var adds []mutate.Addendum
	for i, c := range compressions {
		size := thinBytes
		if i+1 == fat {
			size = fatBytes
		}
		l := packedLayer(t, c, tarOf(t, uint64(i+1), size))
		sizes = append(sizes, int64(len(l.plain)))
		adds = append(adds, mutate.Addendum{Layer: l, MediaType: l.mediaType})
	}
	img, err := mutate.Append(img, adds...)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img, sizes
}

// serveRegistry starts a registry that ends with the test and returns its host. before is called with each request, and
// may hold it.
func serveRegistry(t testing.TB, before func(*http.Request)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		handler.ServeHTTP(w, r)
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}

// push pushes an image to a registry and returns its reference.
func push(t testing.TB, host string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(host + "/test/layers:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}
