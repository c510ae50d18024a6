// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/containerd/stargz-snapshotter/fs/remote"
	stargz "github.com/containerd/stargz-snapshotter/fs/source"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var _ stargz.RegistryHosts = noHosts

// Handle implements remote.Handler. The bytes come from the store, where Mount has opened the blob.
func (f *filesystem) Handle(_ context.Context, desc ocispec.Descriptor) (remote.Fetcher, int64, error) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	b := f.store.blobs[desc.Digest]
	if b == nil {
		return nil, 0, fmt.Errorf("layer %s is not open", desc.Digest)
	}
	return fetcher{b}, b.size, nil
}

// fetcher implements remote.Fetcher.
type fetcher struct{ blob *Blob }

// Fetch returns bytes of the blob.
func (f fetcher) Fetch(_ context.Context, off, size int64) (io.ReadCloser, error) {
	p := make([]byte, size)
	n, err := f.blob.ReadAt(p, off)
	if err != nil && err != io.EOF {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(p[:n])), nil
}

// Check returns nil: see filesystem.Check.
func (fetcher) Check() error { return nil }

// GenID returns the name of a range of bytes in caches.
func (f fetcher) GenID(off, size int64) string {
	return f.blob.source.digest.Encoded() + "-" + strconv.FormatInt(off, 10) + "-" + strconv.FormatInt(size, 10)
}
