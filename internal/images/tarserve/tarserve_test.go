// SPDX-License-Identifier: Apache-2.0

package tarserve

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"wangell.loutres.me/internal/images/image"
)

const content = "hello, world"

func testImage(t *testing.T) v1.Image {
	t.Helper()
	img, err := image.Build(image.Spec{Files: map[string]image.File{"/hello": {Data: []byte(content)}}})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// pulled returns the image that a server serves, after its blobs were read and compared with their digests.
func pulled(t *testing.T, file string) v1.Image {
	t.Helper()
	s, err := Start(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	ref, err := name.ParseReference(s.Ref(), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range layers { // package validate wants compressed ones
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got, _, err := v1.SHA256(r)
		want, failed := l.DiffID()
		if err := errors.Join(err, failed); err != nil || got != want {
			t.Errorf("the content of layer %d is %s, want %s: %v", i+1, got, want, err)
		}
	}
	return img
}

func TestATarballOfDockerSaveIsServedAsItIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "saved.tar")
	img := testImage(t)
	if err := image.WriteFile(file, "local/x:v1", img); err != nil {
		t.Fatal(err)
	}
	want, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pulled(t, file).ConfigName(); err != nil || got != want {
		t.Errorf("configuration %v, %v; want %v", got, err, want)
	}
}

func TestAnImageLayoutIsServedAsItIs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "layout.tar")
	index, err := image.Index(nil, testImage(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := image.WriteLayout(file, "local/x:v1", index); err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pulled(t, file).Digest(); err != nil || got != manifest.Manifests[0].Digest {
		t.Errorf("digest %v, %v; want %v", got, err, manifest.Manifests[0].Digest)
	}
}

// writeTar writes a tarball of files; a content that begins with -> is a symbolic link.
func writeTar(t *testing.T, files ...[2]string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, file := range files {
		h := &tar.Header{Name: file[0], Typeflag: tar.TypeReg, Size: int64(len(file[1])), Mode: 0o644}
		if to, ok := strings.CutPrefix(file[1], "->"); ok {
			h.Typeflag, h.Size, h.Linkname, file[1] = tar.TypeSymlink, 0, to, ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(file[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func TestLayersKeepTheirCompressionAndMayBeLinks(t *testing.T) {
	zstdMagic := "\x28\xb5\x2f\xfd rest"
	file := writeTar(t,
		[2]string{"manifest.json", `[{"Config":"c.json","Layers":["a/layer.tar","b/layer.tar","z"]}]`},
		[2]string{"c.json", `{}`}, [2]string{"a/layer.tar", "plain bytes"}, [2]string{"b/layer.tar", "->../a/layer.tar"},
		[2]string{"z", zstdMagic})
	s, err := Start(file)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ref, err := name.ParseReference(s.Ref(), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	l := manifest.Layers
	if len(l) != 3 || l[0].Digest != l[1].Digest || l[0].MediaType != types.OCIUncompressedLayer ||
		l[2].MediaType != types.OCILayerZStd {
		t.Errorf("layers %+v", l)
	}
}

func TestWhatIsNotInTheTarballIsNotFound(t *testing.T) {
	s := serveTestImage(t)
	host, _, _ := strings.Cut(s.Ref(), "/")
	none := "sha256:" + strings.Repeat("0", 64)
	for path, want := range map[string]int{
		"/v2/": http.StatusOK, "/v2/tarball/manifests/latest": http.StatusOK,
		"/v2/tarball/manifests/other": http.StatusNotFound, "/v2/tarball/blobs/" + none: http.StatusNotFound,
		"/v2/tarball/manifests/" + none: http.StatusNotFound, "/v2/other/manifests/latest": http.StatusNotFound,
	} {
		r, err := http.Get("http://" + host + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, r.Status, want)
		}
	}
}

func TestFilesThatAreNoImageAreRefused(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("no tarball ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(t.TempDir(), "packed.tar.gz")
	f, err := os.Create(packed)
	if err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(f)
	w.Write([]byte("anything"))
	w.Close()
	f.Close()
	for file, want := range map[string]string{
		text:                              "is not a tarball",
		packed:                            "decompress it first",
		writeTar(t, [2]string{"a", "b"}):  "holds no image",
		filepath.Join(t.TempDir(), "nix"): "no such file",
		writeTar(t, [2]string{"index.json", `{"manifests":[{},{}]}`}):                           "holds 2 images: want one",
		writeTar(t, [2]string{"manifest.json", `[{},{}]`}):                                      "holds 2 images: want one",
		writeTar(t, [2]string{"manifest.json", `[{"Config":"c","Layers":[]}]`}):                 "lacks c",
		writeTar(t, [2]string{"index.json", `{"manifests":[{"digest":"sha256:ab","size":1}]}`}): "lacks the blob sha256:ab",
	} {
		s, err := Start(file)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}

// serveTestImage serves testImage until the test ends.
func serveTestImage(t *testing.T) *Server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := image.WriteFile(file, "local/x:v1", testImage(t)); err != nil {
		t.Fatal(err)
	}
	s, err := Start(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// A page whose name leads to this machine (DNS rebinding) does not read images.
func TestImagesAreNotServedToWebPages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := image.WriteFile(file, "local/x:v1", testImage(t)); err != nil {
		t.Fatal(err)
	}
	s, err := Start(file)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for host, want := range map[string]int{"": http.StatusOK, "evil.example": http.StatusMisdirectedRequest} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.listen.Addr().String()+"/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if got.StatusCode != want {
			t.Errorf("host %q: %s, want %d", host, got.Status, want)
		}
	}
}
