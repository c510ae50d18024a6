// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/test/testutil/debimage"
)

// format is part of the name of an image in the cache: increment it when the same steps give another image.
const format = 1

// imageTag is the name of the image in its tarball.
const imageTag = "wangell.local/pull:gzip"

// cacheFolder returns the folder of downloads and images that are kept between runs.
func cacheFolder() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("folder for downloads: %w", err)
	}
	dir := filepath.Join(base, "wangell", "pull")
	return dir, os.MkdirAll(dir, 0o755)
}

// source is something that makes the archive of a layer.
type source func(w io.Writer) error

// buildImage returns the tarball of the image of a size, which has steps. It is made once for each state of the Debian
// packages, and kept in cache.
func buildImage(
	ctx context.Context, size string, steps []step, cache string, log func(format string, args ...any),
) (string, error) {
	sources, packages, err := findSources(ctx, steps, cache)
	if err != nil {
		return "", fmt.Errorf("make the image: %w", err)
	}
	key, err := json.Marshal([]any{format, runtime.GOARCH, steps, packages})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(key)
	file := filepath.Join(cache, size+"-"+hex.EncodeToString(sum[:6])+".tar")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	log("making the image of size %s: %d layers", size, len(sources))
	older, _ := filepath.Glob(filepath.Join(cache, size+"-*.tar")) // the pattern is right
	for _, o := range older {
		_ = os.Remove(o) // takes space, no more
	}
	work, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	img, err := assemble(ctx, sources, work)
	if err != nil {
		return "", fmt.Errorf("make the image: %w", err)
	}
	// Renamed, so that the file is complete or missing.
	whole := filepath.Join(work, "image.tar")
	if err := image.WriteFile(whole, imageTag, img); err != nil {
		return "", err
	}
	return file, os.Rename(whole, file)
}

// findSources downloads what the steps need.
func findSources(ctx context.Context, steps []step, cache string) ([]source, []debimage.Package, error) {
	var sources []source
	var packages []debimage.Package
	var earlier []string
	for i, s := range steps {
		switch {
		case len(s.Packages) > 0:
			built, err := debimage.Build(ctx, debimage.Recipe{
				Name: "pull-" + s.Packages[0], Packages: s.Packages, Without: earlier,
			})
			if err != nil {
				return nil, nil, err
			}
			for _, p := range built.Packages {
				packages, earlier = append(packages, p), append(earlier, p.Name)
			}
			layers, err := built.Image.Layers()
			if err != nil {
				return nil, nil, err
			}
			sources = append(sources, func(w io.Writer) error { return copyLayer(w, layers[0]) })
		case len(s.Wheels) > 0:
			wheels, err := downloadWheels(ctx, filepath.Join(cache, "wheels"), s.Wheels)
			if err != nil {
				return nil, nil, err
			}
			sources = append(sources, func(w io.Writer) error { return writeWheels(w, wheels) })
		default:
			sources = append(sources, func(w io.Writer) error { return writeSources(w, i, s.Files) })
		}
	}
	return sources, packages, nil
}

func copyLayer(w io.Writer, l v1.Layer) error {
	content, err := l.Uncompressed()
	if err != nil {
		return err
	}
	_, err = io.Copy(w, content)
	return errors.Join(err, content.Close())
}

// assemble makes an image of layers whose blobs are files in dir, compressed as Docker does it.
func assemble(ctx context.Context, sources []source, dir string) (v1.Image, error) {
	layers := make([]mutate.Addendum, len(sources))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, s := range sources {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			l, err := pack(filepath.Join(dir, fmt.Sprint(i)), s)
			layers[i] = mutate.Addendum{Layer: l, History: v1.History{CreatedBy: fmt.Sprintf("step %d", i+1)}}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	img, err := mutate.Append(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: entrypoint(), Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}}
	return mutate.ConfigFile(img, config)
}

// fileLayer is a layer whose blob is a file.
type fileLayer struct {
	file         string
	size         int64
	digest, diff v1.Hash
}

// pack writes the blob of a layer into a file.
func pack(file string, from source) (_ v1.Layer, err error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	packed, plain := sha256.New(), sha256.New()
	blob := gzip.NewWriter(io.MultiWriter(f, packed))
	if err := from(io.MultiWriter(blob, plain)); err != nil {
		return nil, err
	}
	if err := blob.Close(); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return fileLayer{file, info.Size(), hashOf(packed), hashOf(plain)}, nil
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// Digest implements v1.Layer.
func (l fileLayer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID implements v1.Layer.
func (l fileLayer) DiffID() (v1.Hash, error) { return l.diff, nil }

// Compressed implements v1.Layer.
func (l fileLayer) Compressed() (io.ReadCloser, error) { return os.Open(l.file) }

// Uncompressed implements v1.Layer.
func (l fileLayer) Uncompressed() (io.ReadCloser, error) {
	return nil, fmt.Errorf("layer %s is only stored as a blob", l.digest)
}

// Size implements v1.Layer.
func (l fileLayer) Size() (int64, error) { return l.size, nil }

// MediaType implements v1.Layer.
func (l fileLayer) MediaType() (types.MediaType, error) { return types.DockerLayer, nil }
