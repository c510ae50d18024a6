// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// corrupting is a content store whose large blobs are read with a wrong byte.
type corrupting struct{ content.Store }

// ReaderAt implements content.Provider.
func (c corrupting) ReaderAt(ctx context.Context, d ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := c.Store.ReaderAt(ctx, d)
	if err == nil && r.Size() > 1<<20 {
		return wrongByte{r}, nil
	}
	return r, err
}

type wrongByte struct{ content.ReaderAt }

// ReadAt implements io.ReaderAt.
func (w wrongByte) ReadAt(b []byte, at int64) (int, error) {
	n, err := w.ReaderAt.ReadAt(b, at)
	if middle := w.Size() / 2; at <= middle && middle < at+int64(n) {
		b[middle-at] ^= 0xff
	}
	return n, err
}
