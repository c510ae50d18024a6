// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// labelSource is the prefix of the labels with the repositories that a blob came from.
	labelSource = "containerd.io/distribution.source."
	// maxManifest bounds the size in bytes of blobs that are read as manifests, and manifests their number in a pull.
	maxManifest = 1 << 20
	manifests   = 8
)

// Progress returns the packed bytes of an image's layers that are on the machine, and their total, during a pull that
// began at a time. known is false as long as containerd does not have the manifest, and if the runtime is not
// containerd: the CRI reports nothing of a pull before its end.
func (s *Images) Progress(ctx context.Context, ref string, began time.Time) (done, total uint64, known bool) {
	ctx, cancel := namespaced(ctx)
	defer cancel()
	layers := s.layers(ctx, ref, began)
	if len(layers) == 0 {
		return 0, 0, false
	}
	active, err := s.content.ListStatuses(ctx, &contentv1.ListStatusesRequest{})
	if err != nil {
		return 0, 0, false
	}
	offsets := map[string]int64{}
	for _, st := range active.Statuses {
		if i := strings.Index(st.Ref, "sha256:"); i >= 0 { // "layer-sha256:…"
			offsets[st.Ref[i:]] = st.Offset
		}
	}
	for digest, size := range layers {
		total += uint64(size)
		if offset, fetching := offsets[digest]; fetching {
			done += uint64(min(max(offset, 0), size))
		} else if _, err := s.content.Info(ctx, &contentv1.InfoRequest{Digest: digest}); err == nil {
			done += uint64(size)
		}
	}
	return done, total, true
}

// Fetched returns the packed bytes of an image's layers that a pull begun at a time has fetched, and when the last of
// them arrived. known is false if nothing was fetched, if the runtime has discarded what it has unpacked, and if it
// is not containerd.
func (s *Images) Fetched(ctx context.Context, ref string, began time.Time) (bytes uint64, last time.Time, known bool) {
	ctx, cancel := namespaced(ctx)
	defer cancel()
	for digest, size := range s.layers(ctx, ref, began) {
		r, err := s.content.Info(ctx, &contentv1.InfoRequest{Digest: digest})
		if err != nil {
			return 0, time.Time{}, false
		}
		if at := r.GetInfo().GetCreatedAt().AsTime(); !at.Before(began) {
			bytes += uint64(size)
			if at.After(last) {
				last = at
			}
		}
	}
	return bytes, last, bytes > 0
}

// layers returns the sizes of an image's layers by digest, from the manifests that its pull has fetched.
func (s *Images) layers(ctx context.Context, ref string, began time.Time) map[string]int64 {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil
	}
	fixed := ""
	if digested, ok := named.(reference.Digested); ok {
		fixed = digested.Digest().String()
	}
	host, _, _ := strings.Cut(reference.Domain(named), ":") // containerd leaves the port out
	label := labelSource + host
	list, err := s.content.List(ctx, &contentv1.ListContentRequest{
		Filters: []string{fmt.Sprintf("labels.%q~=%q", label, reference.Path(named))},
	})
	if err != nil {
		return nil
	}
	layers, read := map[string]int64{}, 0
	for read < manifests {
		part, err := list.Recv()
		if err != nil { // io.EOF; after an error the next call tries again
			break
		}
		for _, info := range part.Info {
			fresh := info.Digest == fixed || !info.CreatedAt.AsTime().Before(began)
			if !fresh || info.Size > maxManifest || read == manifests {
				continue
			}
			var m ocispec.Manifest
			if json.Unmarshal(s.read(ctx, info.Digest), &m) != nil || len(m.Layers) == 0 {
				continue // a layer or the configuration
			}
			read++
			for _, l := range m.Layers {
				if l.Size >= 0 {
					layers[l.Digest.String()] = l.Size
				}
			}
		}
	}
	return layers
}

// read returns a small blob; nil if it cannot be read.
func (s *Images) read(ctx context.Context, digest string) []byte {
	stream, err := s.content.Read(ctx, &contentv1.ReadContentRequest{Digest: digest})
	if err != nil {
		return nil
	}
	var data []byte
	for len(data) <= maxManifest {
		part, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return data
			}
			return nil
		}
		data = append(data, part.Data...)
	}
	return nil
}
