// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"compress/gzip"
	"io"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
)

// memoryLayer is a layer whose blob and archive are in memory.
type memoryLayer struct {
	packed, plain []byte
	mediaType     types.MediaType
}

func (l memoryLayer) Digest() (v1.Hash, error) {
	return v1.NewHash(digest.FromBytes(l.packed).String())
}
func (l memoryLayer) DiffID() (v1.Hash, error) { return v1.NewHash(digest.FromBytes(l.plain).String()) }
func (l memoryLayer) Size() (int64, error)     { return int64(len(l.packed)), nil }

func (l memoryLayer) MediaType() (types.MediaType, error) { return l.mediaType, nil }

func (l memoryLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.packed)), nil
}

func (l memoryLayer) Uncompressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.plain)), nil
}

// staticLayer returns a layer compressed with gzip.
func staticLayer(t testing.TB, archive []byte, mediaType types.MediaType) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return memoryLayer{b.Bytes(), archive, mediaType}
}
