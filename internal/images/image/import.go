// SPDX-License-Identifier: Apache-2.0

package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Import imports every image of a tarball (docker save or OCI layout) into containerd, in the default namespace of c,
// and has a snapshotter unpack it, so that containers can start from it at once; an empty snapshotter means
// containerd's default. It returns the full names of the images. With a tag, the only image of the tarball gets that
// name instead of its own.
//
// A name leads to the new image once that is complete and unpacked: after an error, names lead where they led before.
// Images for other platforms are refused.
func Import(ctx context.Context, c *client.Client, snapshotter, tag string, r io.Reader) ([]string, error) {
	// The lease keeps containerd from removing what no name leads to yet.
	ctx, done, err := c.WithLease(ctx)
	if err != nil {
		return nil, fmt.Errorf("import image: %w", err)
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()
	list, err := read(ctx, c, r)
	if err == nil {
		list, err = named(list, tag)
	}
	if err != nil {
		return nil, fmt.Errorf("import image: %w", err)
	}
	for _, i := range list {
		if err := client.NewImage(c, i).Unpack(ctx, snapshotter); err != nil {
			return nil, fmt.Errorf("import image: unpack %s: %w", i.Name, err)
		}
	}
	var names []string
	for _, i := range list {
		if err := lead(ctx, c.ImageService(), i); err != nil {
			return names, fmt.Errorf("import image: name %s: %w", i.Name, err)
		}
		names = append(names, i.Name)
	}
	return names, nil
}

// read stores the blobs of a tarball, and returns its images as the tarball names them.
func read(ctx context.Context, c *client.Client, r io.Reader) (list []images.Image, err error) {
	store := c.ContentStore()
	index, err := archive.ImportIndex(ctx, store, r)
	if err != nil {
		return nil, err
	}
	text, err := content.ReadBlob(ctx, store, index)
	if err != nil {
		return nil, err
	}
	var top ocispec.Index
	if err := json.Unmarshal(text, &top); err != nil {
		return nil, fmt.Errorf("index of the tarball: %w", err)
	}
	here := slices.DeleteFunc(slices.Clone(top.Manifests), func(d ocispec.Descriptor) bool {
		return d.Platform != nil && !platforms.Default().Match(*d.Platform)
	})
	if len(here) == 0 {
		here = top.Manifests // Unpack says what is wrong with them
	}
	var children images.HandlerFunc = func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if d.Digest == index.Digest {
			return here, nil
		}
		return images.Children(ctx, store, d)
	}
	labelled := images.SetChildrenLabels(store, images.FilterPlatforms(children, platforms.Default()))
	if err := images.WalkNotEmpty(ctx, labelled, index); err != nil {
		return nil, err
	}
	for _, d := range here {
		name := cmp.Or(d.Annotations[images.AnnotationImageName], d.Annotations[ocispec.AnnotationRefName])
		list = append(list, images.Image{Name: name, Target: d})
	}
	return list, nil
}

// named returns images with the full names that services find them by: "docker.io/local/x:v1" for "local/x:v1". With a
// tag, there has to be one image, which gets that name. Images without a name are left out.
func named(list []images.Image, tag string) ([]images.Image, error) {
	if tag != "" {
		for _, i := range list {
			if i.Target.Digest != list[0].Target.Digest {
				return nil, errors.New("the tarball holds several images: a tag can name only one")
			}
		}
		if len(list) > 0 {
			list = []images.Image{{Name: tag, Target: list[0].Target}}
		}
	}
	var out []images.Image
	for _, i := range list {
		if i.Name == "" {
			continue
		}
		full, err := reference.ParseDockerRef(i.Name)
		if err != nil {
			return nil, fmt.Errorf("%q is no name of an image: %w: give another as the tag (--tag)", i.Name, err)
		}
		i.Name = full.String()
		out = append(out, i)
	}
	if len(out) == 0 {
		return nil, errors.New("the tarball names no image: give a name as the tag (--tag), or set one when you build it")
	}
	return out, nil
}

// lead lets the name of an image lead to it.
func lead(ctx context.Context, store images.Store, i images.Image) error {
	_, err := store.Update(ctx, i, "target")
	if errdefs.IsNotFound(err) {
		_, err = store.Create(ctx, i)
	}
	return err
}
