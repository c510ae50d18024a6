// SPDX-License-Identifier: Apache-2.0

// Package debimage makes container images of Debian's or Ubuntu's packages, for tests with real servers: no Docker, no
// registry, no rights. Packages and their dependencies come through apt from the sources that the machine is
// configured with; the machine's own packages and apt's state stay as they are. Maintainer scripts do not run.
package debimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/image"
)

// Recipe says what an image is made of.
type Recipe struct {
	// Name is its short name; Tag has it.
	Name string
	// Packages are names of packages; their dependencies (not what they only recommend) come with them. The sources
	// of the machine choose the versions.
	Packages []string
	// Without are patterns (path.Match) of packages that are dependencies but not needed. Those that only maintainer
	// scripts need are always left out.
	Without []string
	// Users are added to root and nobody.
	Users []User
	// Files are added, or replace those of packages, by their absolute path.
	Files map[string]image.File
	// Entrypoint is the command; Env has entries "NAME=value"; User is "uid:gid", empty for root.
	Entrypoint, Env []string
	User            string
	// Port is the TCP port on which the server listens; 0 if it never does.
	Port int
	// StopSignal is what asks the server to end. Empty: SIGTERM.
	StopSignal string
}

// User is an account in the image; its group has the same name and number.
type User struct {
	Name  string
	ID    int
	Home  string
	Shell string // empty: none
	// EmptyPassword lets the user log in without one.
	EmptyPassword bool
}

// Package is a package in an image.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Built is a finished image.
type Built struct {
	// Tag is the reference under which to load it.
	Tag string
	// Image is the image, with one layer.
	Image v1.Image
	// Packages are those in it, in the order in which apt would install them.
	Packages []Package
}

// Tag is the image's reference: "wangell.local/NAME:debian".
func (r Recipe) Tag() string { return "wangell.local/" + r.Name + ":debian" }

// format is part of the cache's key; it changes when the same recipe and packages make another image.
const format = 1

// Build makes the image of a recipe. An image of the same recipe and versions that was made before is taken from the
// user's cache folder, if it is whole. The same recipe and versions always make the same digest.
func Build(ctx context.Context, r Recipe) (*Built, error) {
	b, err := build(ctx, r, cacheDir())
	if err != nil {
		return nil, fmt.Errorf("image %s of packages %s: %w", r.Tag(), strings.Join(r.Packages, ", "), err)
	}
	return b, nil
}

// cacheDir is where finished images are kept; empty if the user has no cache folder.
func cacheDir() string {
	base, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dir := filepath.Join(base, "wangell", "debimage")
	if os.MkdirAll(dir, 0o700) != nil {
		return ""
	}
	return dir
}

func build(ctx context.Context, r Recipe, cache string) (*Built, error) {
	if cache != "" {
		unlock, err := lock(ctx, filepath.Join(cache, "lock"))
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	work, err := os.MkdirTemp("", "wangell-debimage-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	a, err := newApt(ctx, work)
	if err != nil {
		return nil, err
	}
	all, err := a.resolve(ctx, r.Packages)
	if err != nil {
		return nil, err
	}
	packages := wanted(all, append(maintainerTools, r.Without...))
	b := &Built{Tag: r.Tag(), Packages: packages}
	kept := ""
	if cache != "" {
		key, err := cacheKey(r, packages)
		if err != nil {
			return nil, err
		}
		kept = filepath.Join(cache, r.Name+"-"+key)
		if img, err := cached(kept); err == nil {
			b.Image = img
			return b, nil
		}
	}
	debs, err := a.download(ctx, packages)
	if err != nil {
		return nil, err
	}
	files := baseFiles(r)
	for _, deb := range debs {
		if err := unpack(ctx, deb, files); err != nil {
			return nil, fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
		}
	}
	for name, f := range r.Files {
		files[name] = f
	}
	b.Image, err = image.Build(image.Spec{Files: files, Entrypoint: r.Entrypoint, Env: r.Env, User: r.User,
		ExposedPorts: ports(r), StopSignal: r.StopSignal})
	if err != nil {
		return nil, err
	}
	if kept != "" {
		_ = keep(kept, b, r.Name) // a cache that cannot be written is no error: the image is there
	}
	return b, nil
}

// cached reads an image from a folder in the cache, an OCI image layout. Any damage is an error.
func cached(dir string) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	blobs := filepath.Join(dir, "blobs", "sha256")
	entries, err := os.ReadDir(blobs)
	if err != nil {
		return nil, err
	}
	for _, e := range entries { // each has its hash as its name
		sum, err := fileSum(filepath.Join(blobs, e.Name()))
		if err != nil {
			return nil, err
		}
		if sum != e.Name() {
			return nil, fmt.Errorf("%s: %s is damaged", dir, e.Name())
		}
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("%s: %d images, want one", dir, len(manifest.Manifests))
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers { // a blob that is missing is noticed now
		r, err := l.Compressed()
		if err != nil {
			return nil, err
		}
		r.Close()
	}
	return img, nil
}

// keep puts an image into the cache and removes those of the same recipe name that it replaces.
func keep(dir string, b *Built, name string) error {
	older, err := filepath.Glob(filepath.Join(filepath.Dir(dir), name+"-????????????????"))
	if err != nil {
		return err
	}
	for _, o := range older {
		if err := os.RemoveAll(o); err != nil {
			return err
		}
	}
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return p.AppendImage(b.Image)
}

func fileSum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// cacheKey is a hash of all that decides what is in an image.
func cacheKey(r Recipe, packages []Package) (string, error) {
	data, err := json.Marshal(struct {
		Format   int
		Recipe   Recipe
		Packages []Package
	}{format, r, packages})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

func ports(r Recipe) []string {
	if r.Port == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d/tcp", r.Port)}
}

// lock waits for the lock of the cache, which another process may hold while it builds.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: another process builds an image: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// baseFiles are the files that every image has, whatever its packages.
func baseFiles(r Recipe) map[string]image.File {
	files := map[string]image.File{}
	for _, dir := range []string{"/dev", "/etc", "/proc", "/run", "/sys", "/usr", "/var", "/var/lib", "/var/log"} {
		files[dir] = image.File{Mode: fs.ModeDir | 0o755}
	}
	files["/root"] = image.File{Mode: fs.ModeDir | 0o700}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		files[dir] = image.File{Mode: fs.ModeDir | fs.ModeSticky | 0o777}
	}
	for _, dir := range mergedDirs { // merged-usr, as on both distributions now
		files["/"+dir] = image.File{Mode: fs.ModeSymlink | 0o777, Link: "usr/" + dir}
		files["/usr/"+dir] = image.File{Mode: fs.ModeDir | 0o755}
	}
	users := append([]User{{Name: "root", Home: "/root", Shell: "/bin/sh"}, {Name: "nobody", ID: 65534, Home: "/nonexistent"}}, r.Users...)
	last := map[string]User{}
	var names []string
	for _, u := range users {
		if _, known := last[u.Name]; !known {
			names = append(names, u.Name)
		}
		last[u.Name] = u
	}
	var passwd, group, shadow strings.Builder
	for _, name := range names {
		u := last[name]
		shell, password := u.Shell, "*"
		if shell == "" {
			shell = "/usr/sbin/nologin"
		}
		if u.EmptyPassword {
			password = ""
		}
		fmt.Fprintf(&passwd, "%s:x:%d:%d:%s:%s:%s\n", u.Name, u.ID, u.ID, u.Name, u.Home, shell)
		fmt.Fprintf(&group, "%s:x:%d:\n", u.Name, u.ID)
		fmt.Fprintf(&shadow, "%s:%s:1::::::\n", u.Name, password)
	}
	files["/etc/passwd"] = image.File{Data: []byte(passwd.String())}
	files["/etc/group"] = image.File{Data: []byte(group.String())}
	files["/etc/shadow"] = image.File{Data: []byte(shadow.String()), Mode: 0o640}
	files["/etc/nsswitch.conf"] = image.File{Data: []byte("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")}
	return files
}
