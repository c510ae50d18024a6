// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func twoPlatforms(t *testing.T) v1.ImageIndex {
	t.Helper()
	var images []v1.Image
	for _, p := range []string{"linux/amd64", "linux/arm64"} {
		program := File{Data: []byte(p), Mode: 0o755}
		img, err := Build(Spec{
			Platform: p, Files: map[string]File{"/program": program}, Entrypoint: []string{"/program"}, User: "1:2",
		})
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	index, err := Index(map[string]string{"org.opencontainers.image.version": "v1"}, images...)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func TestIndexHoldsCompressedImagesOfEveryPlatform(t *testing.T) {
	index := twoPlatforms(t)
	if a, b := digestOf(t, index), digestOf(t, twoPlatforms(t)); a != b {
		t.Errorf("the same content has the digests %v and %v", a, b)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if m.MediaType != types.OCIImageIndex || m.Annotations["org.opencontainers.image.version"] != "v1" ||
		len(m.Manifests) != 2 {
		t.Fatalf("manifest %+v", m)
	}
	for i, platform := range []string{"linux/amd64", "linux/arm64"} {
		if got := m.Manifests[i].Platform.String(); got != platform {
			t.Errorf("manifest %d is for %s, want %s", i, got, platform)
		}
		img, err := index.Image(m.Manifests[i].Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		c := config.Config
		if config.Platform().String() != platform || c.User != "1:2" || c.Entrypoint[0] != "/program" ||
			c.Labels["org.opencontainers.image.version"] != "v1" {
			t.Errorf("config %+v", config)
		}
		layers, err := img.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		if mt, err := layers[0].MediaType(); err != nil || mt != types.OCILayer {
			t.Errorf("layer is %v, %v", mt, err)
		}
		compressed, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}
		defer compressed.Close()
		gz, err := gzip.NewReader(compressed)
		if err != nil {
			t.Fatalf("layer is not gzip: %v", err)
		}
		if _, err := io.Copy(io.Discard, gz); err != nil {
			t.Errorf("reading the layer: %v", err)
		}
	}
}

func digestOf(t *testing.T, index v1.ImageIndex) v1.Hash {
	t.Helper()
	d, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestIndexRefusesTwoImagesForOnePlatform(t *testing.T) {
	img, err := Build(Spec{Files: map[string]File{"/x": {}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Index(nil, img, img); err == nil || !strings.Contains(err.Error(), "two images for linux/") {
		t.Errorf("two images for one platform: %v", err)
	}
	if _, err := Index(nil); err == nil {
		t.Error("no error for an index without images")
	}
}

func TestLayoutHoldsEveryBlobAndTheName(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "image.tar")
	index := twoPlatforms(t)
	if err := WriteLayout(file, "wangell.local/test:v1", index); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if found[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(string(found["oci-layout"]), "1.0.0") {
		t.Errorf("oci-layout is %q", found["oci-layout"])
	}
	var top v1.IndexManifest
	if err := json.Unmarshal(found["index.json"], &top); err != nil || len(top.Manifests) != 1 {
		t.Fatalf("index.json: %v: %s", err, found["index.json"])
	}
	m := top.Manifests[0]
	if m.Digest != digestOf(t, index) || m.Annotations[annotationRefName] != "v1" ||
		m.Annotations[annotationContainerdName] != "wangell.local/test:v1" {
		t.Errorf("index.json: %+v", m)
	}
	// The index, and a manifest, a config and a layer per platform.
	if blobs := len(found) - 2; blobs != 7 {
		t.Errorf("%d blobs, want 7", blobs)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("files in the folder: %v, %v", left, err)
	}
	bad := filepath.Join(dir, "bad.tar")
	if err := WriteLayout(bad, "not a name", index); err == nil {
		t.Error("no error for an invalid name")
	}
	if _, err := os.Stat(bad); !os.IsNotExist(err) {
		t.Errorf("a file remains after an error: %v", err)
	}
}

func TestPushedIndexCanBePulledForEveryPlatform(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	index := twoPlatforms(t)
	got, err := Push(t.Context(), host+"/a/test:v1", index, true)
	if err != nil {
		t.Fatal(err)
	}
	if want := host + "/a/test@" + digestOf(t, index).String(); got != want {
		t.Errorf("pushed as %s, want %s", got, want)
	}
	ref, err := name.ParseReference(host+"/a/test:v1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		// Reading from a registry verifies digests.
		if h, ok := members(t, img)["program"]; !ok || h.Mode != 0o755 || h.Size != int64(len("linux/"+arch)) {
			t.Errorf("%s: %+v", arch, h)
		}
	}
	server.Close()
	if _, err := Push(t.Context(), host+"/a/test:v2", index, true); err == nil ||
		!strings.Contains(err.Error(), "/a/test:v2") {
		t.Errorf("push to a stopped registry: %v", err)
	}
}
