// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Annotations with the name of an image in an OCI layout: the standard one of the OCI image-spec, and the one that
// containerd prefers.
const (
	annotationRefName        = "org.opencontainers.image.ref.name"
	annotationContainerdName = "io.containerd.image.name"
)

// Index combines images built by Build into one image for several platforms, suitable for a registry: OCI media types,
// layers compressed with gzip, and labels (OCI image-spec, "Pre-Defined Annotation Keys") on each image and as
// annotations of the index. Two images for one platform are an error. The same content always gives the same digest.
func Index(labels map[string]string, images ...v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	seen := map[string]bool{}
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("create image index: %w", err)
		}
		platform := config.Platform()
		if seen[platform.String()] {
			return nil, fmt.Errorf("create image index: two images for %s: set Platform of one", platform)
		}
		seen[platform.String()] = true
		packed, err := compress(img, labels)
		if err != nil {
			return nil, fmt.Errorf("create image index: image for %s: %w", platform, err)
		}
		addendum := mutate.IndexAddendum{Add: packed, Descriptor: v1.Descriptor{Platform: platform}}
		index = mutate.AppendManifests(index, addendum)
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("create image index: no images")
	}
	return mutate.Annotations(index, labels).(v1.ImageIndex), nil
}

// compress returns img with gzip layers, OCI media types and labels.
func compress(img v1.Image, labels map[string]string) (v1.Image, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	packed := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for i, l := range layers {
		layer, err := tarball.LayerFromOpener(l.Uncompressed, tarball.WithMediaType(types.OCILayer),
			tarball.WithCompressedCaching)
		if err != nil {
			return nil, err
		}
		add := mutate.Addendum{Layer: layer, MediaType: types.OCILayer}
		if i < len(config.History) {
			add.History = config.History[i]
		}
		if packed, err = mutate.Append(packed, add); err != nil {
			return nil, err
		}
	}
	made, err := packed.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.RootFS = made.RootFS
	config.Config.Labels = labels
	return mutate.ConfigFile(packed, config)
}

// WriteLayout writes index under the name tag into a new tarball of an OCI image layout, which docker load, podman
// load, ctr image import and Import can read. On error no file remains.
func WriteLayout(file, tag string, index v1.ImageIndex) error {
	if err := writeLayout(file, tag, index); err != nil {
		_ = os.Remove(file)
		return fmt.Errorf("write image %s to %s: %w", tag, file, err)
	}
	return nil
}

func writeLayout(file, tag string, index v1.ImageIndex) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(file), ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	folder, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	names := map[string]string{annotationRefName: ref.TagStr(), annotationContainerdName: ref.Name()}
	if err := folder.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	err = tarFolder(out, dir)
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}

// tarFolder writes the regular files below dir, sorted by name and with constant times.
func tarFolder(w io.Writer, dir string) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		inside, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return writeEntry(out, entry{
			header: tar.Header{Name: inside, Typeflag: tar.TypeReg, Mode: 0o644, Size: info.Size()},
			open:   func() (io.ReadCloser, error) { return os.Open(p) },
		})
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// Push writes index to a registry under the name tag and returns the reference to pull it by, NAME@DIGEST. It uses the
// credentials of docker login. plain allows HTTP with any registry; otherwise only registries on this machine may use
// it.
func Push(ctx context.Context, tag string, index v1.ImageIndex, plain bool) (string, error) {
	var options []name.Option
	if plain {
		options = append(options, name.Insecure)
	}
	ref, err := name.NewTag(tag, options...)
	if err != nil {
		return "", fmt.Errorf("image name %q: %w", tag, err)
	}
	settings := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(ref, index, settings...); err != nil {
		return "", fmt.Errorf("push image %s: %w", tag, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("push image %s: %w", tag, err)
	}
	return ref.Context().Digest(digest.String()).Name(), nil
}
