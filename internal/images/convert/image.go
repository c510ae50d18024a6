// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func (j *job) run(ctx context.Context) error {
	if j.o.First != nil && (!j.o.Compression.indexed() || j.o.Layers.Mode != Keep) {
		return fmt.Errorf("files can come first in layers with estargz or zstdchunked that are kept, not with %s and %s",
			j.o.Compression, j.o.Layers)
	}
	top, err := j.from.top(ctx)
	if err != nil {
		return err
	}
	topType := string(top.MediaType)
	types := typesFor(topType, j.o.Compression)
	if !isIndex(topType) {
		p, err := j.read(ctx, descriptor(top), top.Manifest)
		if err != nil {
			return err
		}
		if !j.wants(p.platform) {
			return fmt.Errorf("the image is for %s only, not for %s", platforms.Format(p.platform),
				strings.Join(j.o.Platforms, ", "))
		}
		return j.single(ctx, p, types)
	}
	var index ocispec.Index
	if err := json.Unmarshal(top.Manifest, &index); err != nil {
		return fmt.Errorf("index %s: %w", top.Digest, err)
	}
	parts, err := j.parts(ctx, index)
	if err != nil {
		return err
	}
	if len(j.wanted) == 1 && len(parts) == 1 {
		return j.single(ctx, parts[0], types)
	}
	return j.several(ctx, top.Manifest, index, parts, types)
}

// single converts a manifest, which becomes the image.
func (j *job) single(ctx context.Context, p *part, types mediaTypes) error {
	if !j.anyFirst([]*part{p}) {
		return ErrNoneFirst
	}
	j.count.begin(StageConvert, j.passes()*sizeOf([]*part{p}))
	d, text, m, err := j.convert(ctx, p, types)
	if err != nil {
		return err
	}
	if err := j.verify(ctx, []*part{p}, []ocispec.Manifest{m}); err != nil {
		return err
	}
	return j.publish(ctx, d, text)
}

// several converts the manifests of an index.
func (j *job) several(ctx context.Context, top []byte, index ocispec.Index, parts []*part, types mediaTypes) error {
	if !j.anyFirst(parts) {
		return ErrNoneFirst
	}
	j.count.begin(StageConvert, j.passes()*sizeOf(parts))
	var made []ocispec.Manifest
	was := index
	index.Manifests = nil
	for _, p := range parts {
		d, text, m, err := j.convert(ctx, p, types)
		if err != nil {
			return fmt.Errorf("%s: %w", platforms.Format(p.platform), err)
		}
		if err := j.to.manifest(ctx, d, text); err != nil {
			return err
		}
		d.Platform, d.Annotations = p.desc.Platform, p.desc.Annotations
		index.Manifests = append(index.Manifests, d)
		made = append(made, m)
	}
	if err := j.verify(ctx, parts, made); err != nil {
		return err
	}
	index.MediaType = types.index
	text, err := unlessEqual(top, was, index)
	if err != nil {
		return err
	}
	return j.publish(ctx, describe(types.index, text), text)
}
