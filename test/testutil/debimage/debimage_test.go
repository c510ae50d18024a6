// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"archive/tar"
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/images/image"
)

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func digest(t *testing.T, b *Built) string {
	t.Helper()
	d, err := b.Image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func TestSameRecipeGivesTheSameDigest(t *testing.T) {
	ctx, cache := testContext(t), t.TempDir()
	fresh, err := build(ctx, NeverListens(), "")
	if err != nil {
		t.Fatal(err)
	}
	first, err := build(ctx, NeverListens(), cache)
	if err != nil {
		t.Fatal(err)
	}
	kept, _ := filepath.Glob(filepath.Join(cache, "deaf-*"))
	if len(kept) != 1 {
		t.Fatalf("the cache holds %q, want one image", kept)
	}
	again, err := build(ctx, NeverListens(), cache)
	if err != nil {
		t.Fatal(err)
	}
	if digest(t, fresh) != digest(t, first) || digest(t, first) != digest(t, again) {
		t.Errorf("digests differ: without cache %s, first build %s, from the cache %s",
			digest(t, fresh), digest(t, first), digest(t, again))
	}
	if len(first.Packages) == 0 || first.Packages[0].Version == "" || first.Tag != "wangell.local/deaf:debian" {
		t.Errorf("packages %v, tag %s", first.Packages, first.Tag)
	}
	// A damaged or incomplete image is built again.
	layers, err := first.Image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	hash, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(kept[0], "blobs", "sha256", hash.Hex)
	whole, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)/2] ^= 1
	for what, damage := range map[string]func() error{
		"damaged": func() error { return os.WriteFile(blob, damaged, 0o600) },
		"missing": func() error { return os.Remove(blob) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		repaired, err := build(ctx, NeverListens(), cache)
		if err != nil {
			t.Fatal(err)
		}
		if now, err := os.ReadFile(blob); err != nil || !bytes.Equal(now, whole) || digest(t, repaired) != digest(t, first) {
			t.Errorf("a layer that was %s in the cache was not replaced (%v)", what, err)
		}
	}
	// Another recipe with the same name gives another image, which replaces the first one in the cache.
	other := NeverListens()
	other.Env = []string{"A=b"}
	changed, err := build(ctx, other, cache)
	if err != nil {
		t.Fatal(err)
	}
	kept, _ = filepath.Glob(filepath.Join(cache, "deaf-*"))
	if digest(t, changed) == digest(t, first) || len(kept) != 1 {
		t.Errorf("changed recipe: digest %s, was %s; the cache holds %q", digest(t, changed), digest(t, first), kept)
	}
}

func TestErrorNamesAnUnknownPackage(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	_, err := Build(ctx, Recipe{Name: "x", Packages: []string{"wangell-no-such-package"}})
	if err == nil || !strings.Contains(err.Error(), "wangell-no-such-package") ||
		!strings.Contains(err.Error(), "apt sources") {
		t.Errorf("error %v: want the package's name, and what to check", err)
	}
}

func TestPackagesAreParsedFromURIs(t *testing.T) {
	got, err := parseURIs("'http://x/redis_7.deb' redis-tools_5%3a7.0.15-1~deb12u10_amd64.deb 991988 MD5Sum:00\n" +
		"WARNING\n\n'http://x/l' libc6_2.36-9+deb12u14_amd64.deb 1 \n")
	want := []Package{{"redis-tools", "5:7.0.15-1~deb12u10"}, {"libc6", "2.36-9+deb12u14"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "'uri' nounderscore.deb 1\n", "'uri' a_%zz_b.deb 1\n"} {
		if got, err := parseURIs(bad); err == nil {
			t.Errorf("%q: %v, want an error", bad, got)
		}
	}
	if kept := wanted(got, []string{"redis*"}); len(kept) != 1 || kept[0].Name != "libc6" {
		t.Errorf("kept %v", kept)
	}
}

func TestArchiveMembersMoveToMergedUsr(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "./bin/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "./tmp/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "./bin/tool", Typeflag: tar.TypeReg, Mode: 0o4755, Size: 4, Uid: 7},
		{Name: "./bin/hard", Typeflag: tar.TypeLink, Linkname: "./bin/tool"},
		{Name: "./lib/a/near.so", Typeflag: tar.TypeSymlink, Linkname: "near.so.1"},
		{Name: "./lib/a/far.so", Typeflag: tar.TypeSymlink, Linkname: "../../opt/far.so"},
		{Name: "./usr/share/doc/tool/README", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4},
		{Name: "./usr/share/doc-base", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4},
		{Name: "./libexec/x", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("data")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files := baseFiles(Recipe{})
	before := len(files)
	if err := addTar(&archive, files); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]image.File{
		"/bin":               {Mode: fs.ModeSymlink | 0o777, Link: "usr/bin"},
		"/usr/bin":           {Mode: fs.ModeDir | 0o755},
		"/tmp":               {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		"/usr/bin/tool":      {Mode: fs.ModeSetuid | 0o755, UID: 7, Data: []byte("data")},
		"/usr/bin/hard":      {Mode: fs.ModeSetuid | 0o755, UID: 7, Data: []byte("data")},
		"/usr/lib/a/near.so": {Mode: fs.ModeSymlink, Link: "/lib/a/near.so.1"},
		"/usr/lib/a/far.so":  {Mode: fs.ModeSymlink, Link: "/opt/far.so"},
		"/libexec/x":         {Mode: 0o644, Data: []byte("data")},
	} {
		got, ok := files[name]
		if !ok || got.Mode.Type() != want.Mode.Type() || got.Link != want.Link || got.UID != want.UID ||
			!bytes.Equal(got.Data, want.Data) ||
			want.Mode.Type() != fs.ModeSymlink && got.Mode != want.Mode {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if len(files) != before+6 { // tool, hard, near, far, x, doc-base
		t.Errorf("%d files were added, want 6", len(files)-before)
	}
	archive.Reset()
	w = tar.NewWriter(&archive)
	_ = w.WriteHeader(&tar.Header{Name: "./dev/x", Typeflag: tar.TypeChar})
	w.Close()
	if err := addTar(&archive, files); err == nil {
		t.Error("a device file was accepted")
	}
	if err := addTar(strings.NewReader("not an archive, but longer than nothing"), files); err == nil {
		t.Error("noise was accepted")
	}
}

func TestUsersReplaceThoseOfTheSameName(t *testing.T) {
	files := baseFiles(Recipe{Users: []User{
		{Name: "root", Home: "/root", Shell: "/bin/sh", EmptyPassword: true},
		{Name: "db", ID: 9, Home: "/db"},
	}})
	const passwd = `root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
db:x:9:9:db:/db:/usr/sbin/nologin
`
	if got := string(files["/etc/passwd"].Data); got != passwd {
		t.Errorf("passwd:\n%s", got)
	}
	if got := string(files["/etc/shadow"].Data); got != "root::1::::::\nnobody:*:1::::::\ndb:*:1::::::\n" {
		t.Errorf("shadow:\n%s", got)
	}
}
