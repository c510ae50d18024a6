// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "usr/bin/tool"), []byte("tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "usr/bin/tool"), 0o755|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("usr/bin", filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func spec(base string) Spec {
	return Spec{
		Base: base,
		Files: map[string]File{
			"/etc/deep/file": {Data: []byte("data"), UID: 7, GID: 8},
			"/srv":           {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
			"/link":          {Mode: fs.ModeSymlink | 0o777, Link: "/etc/deep/file"},
		},
		Entrypoint: []string{"/bin/tool"}, Cmd: []string{"serve"}, Env: []string{"A=b"},
		ExposedPorts: []string{"80/tcp"}, User: "7:8", WorkingDir: "/srv", StopSignal: "SIGQUIT",
	}
}

func members(t *testing.T, img v1.Image) map[string]tar.Header {
	t.Helper()
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	found := map[string]tar.Header{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = *h
	}
}

// layerDigests returns the digests of the first layer as it is stored, and of its content.
func layerDigests(t *testing.T, img v1.Image) (stored, unpacked v1.Hash) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for sum, open := range map[*v1.Hash]func() (io.ReadCloser, error){
		&stored: layers[0].Compressed, &unpacked: layers[0].Uncompressed,
	} {
		r, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if *sum, _, err = v1.SHA256(r); err != nil {
			t.Fatal(err)
		}
	}
	return stored, unpacked
}

func TestBuildKeepsFilesModesAndConfig(t *testing.T) {
	img, err := Build(spec(tree(t)))
	if err != nil {
		t.Fatal(err)
	}
	got := members(t, img)
	if stored, unpacked := layerDigests(t, img); stored != unpacked {
		t.Errorf("the layer is stored as %s, and its content is %s: it is compressed", stored, unpacked)
	}
	for name, want := range map[string]tar.Header{
		"usr/":          {Typeflag: tar.TypeDir, Mode: 0o755},
		"usr/bin/tool":  {Typeflag: tar.TypeReg, Mode: 0o4755, Size: 4},
		"bin":           {Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "usr/bin"},
		"etc/":          {Typeflag: tar.TypeDir, Mode: 0o755},
		"etc/deep/":     {Typeflag: tar.TypeDir, Mode: 0o755},
		"etc/deep/file": {Typeflag: tar.TypeReg, Mode: 0o644, Size: 4, Uid: 7, Gid: 8},
		"srv/":          {Typeflag: tar.TypeDir, Mode: 0o1777},
		"link":          {Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: "/etc/deep/file"},
	} {
		h, ok := got[name]
		if !ok || h.Typeflag != want.Typeflag || h.Mode != want.Mode || h.Size != want.Size ||
			h.Linkname != want.Linkname || !h.ModTime.Equal(epoch) {
			t.Errorf("%s: got %+v", name, h)
		}
		if want.Uid != 0 && (h.Uid != want.Uid || h.Gid != want.Gid) {
			t.Errorf("%s: owner %d:%d", name, h.Uid, h.Gid)
		}
	}
	if _, ok := got["pipe"]; ok {
		t.Error("the image contains a pipe")
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	text := fmt.Sprintf("%v %v %v %v %v %v %v %v", c.Entrypoint, c.Cmd, c.Env, c.User, c.WorkingDir, c.StopSignal,
		c.ExposedPorts, config.OS)
	if text != "[/bin/tool] [serve] ["+defaultPath+" A=b] 7:8 /srv SIGQUIT map[80/tcp:{}] linux" {
		t.Errorf("config %+v", c)
	}
}

// The digest does not depend on the folder or on file times.
func TestSameContentHasTheSameDigest(t *testing.T) {
	var digests []v1.Hash
	for range 2 {
		img, err := Build(spec(tree(t)))
		if err != nil {
			t.Fatal(err)
		}
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, d)
		time.Sleep(10 * time.Millisecond)
	}
	if digests[0] != digests[1] {
		t.Errorf("different digests: %v", digests)
	}
}

func TestBuildRefusesInvalidSpecs(t *testing.T) {
	for want, s := range map[string]Spec{
		"no files":               {},
		"write an absolute path": {Files: map[string]File{"etc/x": {}}},
		"is not supported":       {Files: map[string]File{"/dev/x": {Mode: fs.ModeDevice}}},
		"no such file":           {Base: "/no/such/folder"},
		"platform":               {Files: map[string]File{"/x": {}}, Platform: "a/b/c/d/e"},
	} {
		if _, err := Build(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestTarballKeepsTheImageAndItsName(t *testing.T) {
	img, err := Build(Spec{Files: map[string]File{"/x": {Data: []byte("x")}}, Entrypoint: []string{"/x"}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := WriteFile(file, "wangell.local/test:v1", img); err != nil {
		t.Fatal(err)
	}
	back, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, errA := img.ConfigName()
	b, errB := back.ConfigName()
	if errA != nil || errB != nil || a != b {
		t.Errorf("wrote %v, read %v (%v, %v)", a, b, errA, errB)
	}
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(text, []byte("wangell.local/test:v1")) {
		t.Errorf("the tarball does not name its image: %v", err)
	}
	bad := filepath.Join(t.TempDir(), "bad.tar")
	if err := WriteFile(bad, "Not A Name", img); err == nil {
		t.Error("no error for an invalid name")
	}
	if _, err := os.Stat(bad); err == nil {
		t.Error("a file remains after an error")
	}
}
