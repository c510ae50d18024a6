// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"golang.org/x/sys/unix"
)

// format is part of a cache key. Increment it when the same recipe and packages give a different image.
const format = 1

// cacheDir returns the folder of cached images, or "" if the user has no cache folder.
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

// cached reads an image from a folder in the cache, which is an OCI image layout. Any damage is an error.
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
	for _, e := range entries { // named by their hashes
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
	for _, l := range layers { // fail now if a blob is missing
		r, err := l.Compressed()
		if err != nil {
			return nil, err
		}
		r.Close()
	}
	return img, nil
}

// keep adds an image to the cache and removes older images of the same recipe name.
func keep(dir string, img v1.Image, name string) error {
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
	return p.AppendImage(img)
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

// cacheKey returns a hash of everything that determines the content of an image.
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

// lock waits for the lock of the cache, which another process holds while it builds an image.
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
			return nil, fmt.Errorf("lock %s: another process is building an image: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
