// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"wangell.loutres.me/internal/images/image"
)

// Image is an image in containerd.
type Image struct {
	Name   string
	Digest string
	// Size is the sum of the layers and the configuration as they were pulled, in bytes.
	Size int64
}

// Images lists the images in the instance's containerd namespace.
func (r *Runtime) Images(ctx context.Context) ([]Image, error) {
	list, err := r.client.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", native(err))
	}
	images := make([]Image, 0, len(list))
	for _, i := range list {
		size, err := i.Size(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("size of image %s: %w", i.Name(), native(err))
		}
		images = append(images, Image{Name: i.Name(), Digest: i.Target().Digest.String(), Size: size})
	}
	return images, nil
}

// LoadImages loads the images of a tarball (docker save or OCI layout) and returns their names. Pods started from then
// on use them, unless other pods of their service run: then the service uses them after its next sleep.
func (r *Runtime) LoadImages(ctx context.Context, tarball io.Reader) ([]string, error) {
	names, err := image.Import(ctx, r.client, r.cfg.snapshotter(), "", tarball)
	for _, n := range names {
		r.images.forget(n)
	}
	r.keeper.kick() // prepared pods of these images are made anew
	if err != nil {
		return names, imageFailure(err, "load")
	}
	return names, nil
}
