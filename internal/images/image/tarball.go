// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/client"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"wangell.loutres.me/internal/base/atomicfile"
)

// Write writes img under the name tag as a tarball in the format of docker save, which docker load, ctr image import
// and Import can read.
func Write(w io.Writer, tag string, img v1.Image) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return fmt.Errorf("image name %q: %w", tag, err)
	}
	if err := tarball.Write(ref, img, w); err != nil {
		return fmt.Errorf("write image %s: %w", tag, err)
	}
	return nil
}

// WriteFile is like Write, to a new file. On error no file remains.
func WriteFile(file, tag string, img v1.Image) error {
	return atomicfile.Into(file, 0o644, func(w io.Writer) error { return Write(w, tag, img) })
}

// ImportImage is like Import with containerd's default snapshotter, for an image in memory and under the name tag.
func ImportImage(ctx context.Context, c *client.Client, tag string, img v1.Image) error {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(Write(w, tag, img)) }()
	defer r.Close()
	_, err := Import(ctx, c, "", "", r)
	return err
}
