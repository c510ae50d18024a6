// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/platforms"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	ggcr "github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/images/lazy/trace"
)

// job is a conversion.
type job struct {
	converter
	wanted []platforms.MatchComparer
	res    Result
}

func descriptor(d *remote.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: string(d.MediaType), Digest: digest.Digest(d.Digest.String()), Size: int64(len(d.Manifest)),
	}
}

func (j *job) wants(p ocispec.Platform) bool {
	for _, w := range j.wanted {
		if w.Match(p) {
			return true
		}
	}
	return len(j.wanted) == 0
}

// attestation is the annotation of manifests about others, as BuildKit writes them.
const attestation = "vnd.docker.reference.type"

// parts reads the manifests of an index that should be converted.
func (j *job) parts(ctx context.Context, index ocispec.Index) ([]*part, error) {
	var parts []*part
	var others []string
	for _, d := range index.Manifests {
		drop := func(reason string) { j.res.Dropped = append(j.res.Dropped, Dropped{d.Digest, reason}) }
		switch {
		case d.Annotations[attestation] != "":
			drop("is about the image as it was (" + d.Annotations[attestation] + ")")
			continue
		case !isImage(d.MediaType):
			drop("is no image, but " + d.MediaType)
			continue
		case d.Platform != nil && !j.wants(*d.Platform):
			others = append(others, platforms.Format(*d.Platform))
			continue
		}
		m, err := j.from.manifest(ctx, d)
		if err != nil {
			return nil, err
		}
		p, err := j.read(ctx, d, m.Manifest)
		if errors.Is(err, errNoImage) {
			drop(err.Error())
			continue
		} else if err != nil {
			return nil, err
		}
		if d.Platform == nil && !j.wants(p.platform) {
			others = append(others, platforms.Format(p.platform))
			continue
		}
		parts = append(parts, p)
	}
	if len(parts) == 0 && len(others) > 0 {
		return nil, fmt.Errorf("the image is for %s, not for %s", strings.Join(others, ", "), strings.Join(j.o.Platforms,
			", "))
	}
	if len(parts) == 0 {
		return nil, errors.New("the index holds no image")
	}
	return parts, nil
}

var errNoImage = errors.New("is no image")

// mostDocument is the most bytes of a configuration.
const mostDocument = 16 << 20

// read reads a manifest and its configuration.
func (j *job) read(ctx context.Context, d ocispec.Descriptor, text []byte) (*part, error) {
	p := &part{desc: d, text: text}
	if err := json.Unmarshal(text, &p.manifest); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	if !isConfig(p.manifest.Config.MediaType) {
		return nil, fmt.Errorf("manifest %s %w: its configuration is of type %q", d.Digest, errNoImage,
			p.manifest.Config.MediaType)
	}
	in, err := j.from.open(ctx, p.manifest.Config)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if p.config, err = io.ReadAll(io.LimitReader(in, mostDocument)); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", d.Digest, err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(p.config, &config); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", d.Digest, err)
	}
	p.platform = config.Platform
	if d.Platform != nil {
		p.platform = *d.Platform
	}
	if len(config.RootFS.DiffIDs) != len(p.manifest.Layers) {
		return nil, fmt.Errorf("manifest %s has %d layers, and its configuration %d: the image is damaged", d.Digest,
			len(p.manifest.Layers), len(config.RootFS.DiffIDs))
	}
	for i, l := range p.manifest.Layers {
		p.layers = append(p.layers, layer{l, config.RootFS.DiffIDs[i]})
	}
	return p, nil
}

// passes returns how often a layer is read.
func (j *job) passes() int64 {
	switch {
	case j.o.Layers.Mode == Split:
		return 3
	case j.o.Layers.Mode == Squash || j.o.Compression.indexed():
		return 2
	}
	return 1
}

// anyFirst reports whether files of some layer come first, or none are asked for.
func (j *job) anyFirst(parts []*part) bool {
	for _, p := range parts {
		if len(j.first(p.layers)) > 0 {
			return true
		}
	}
	return j.o.First == nil
}

func describe(mediaType string, text []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
}

func (j *job) publish(ctx context.Context, d ocispec.Descriptor, text []byte) error {
	if err := j.to.publish(ctx, d, text); err != nil {
		return fmt.Errorf("write %s: %w", j.o.Destination, err)
	}
	j.res.Digest, j.res.MediaType = d.Digest, d.MediaType
	return nil
}

// convert converts the layers of a manifest, and returns another manifest.
func (j *job) convert(ctx context.Context, p *part, types mediaTypes) (d ocispec.Descriptor, text []byte,
	m ocispec.Manifest, err error) {
	runs, err := j.convertLayers(ctx, p.layers)
	if err != nil {
		return d, nil, m, err
	}
	config, err := newConfig(p.config, p.layers, runs)
	if err != nil {
		return d, nil, m, err
	}
	image := Image{Platform: platforms.Format(p.platform), Source: p.desc.Digest}
	for _, l := range p.layers {
		image.Before = append(image.Before, Layer{l.Digest, l.Size, j.unpacked[l.Digest], 0})
	}
	m = p.manifest
	m.MediaType, m.Layers = types.manifest, []ocispec.Descriptor{}
	m.Config.MediaType, m.Config.Digest, m.Config.Size = types.config, digest.FromBytes(config), int64(len(config))
	m.Config.Data = nil
	for _, r := range runs {
		from := p.layers[r.first : r.last+1]
		for _, o := range r.out {
			l := o.Descriptor
			switch {
			case foreign(l):
				if types == ociTypes && l.MediaType == string(ggcr.DockerForeignLayer) {
					l.MediaType = ocispec.MediaTypeImageLayerNonDistributableGzip //nolint:staticcheck // the source has it
				}
			case l.Digest == from[0].Digest:
				l.MediaType = types.layer(j.o.Compression)
			default:
				l.MediaType = types.layer(j.o.Compression)
				l.Annotations = annotationsFor(from, l.Annotations)
			}
			m.Layers = append(m.Layers, l)
			first, _ := strconv.ParseInt(l.Annotations[trace.Annotation], 10, 64) // 0 without the annotation
			image.After = append(image.After, Layer{l.Digest, l.Size, o.Unpacked, first})
		}
	}
	file, err := j.spool()
	if err == nil {
		err = os.WriteFile(file, config, 0o600)
	}
	if err == nil {
		err = j.deliver(ctx, m.Config, file)
	}
	if err != nil {
		return d, nil, m, err
	}
	if text, err = unlessEqual(p.text, p.manifest, m); err != nil {
		return d, nil, m, err
	}
	d = describe(types.manifest, text)
	image.Digest = d.Digest
	j.res.Images = append(j.res.Images, image)
	return d, text, m, nil
}

// unlessEqual returns a document as JSON. If it equals a former document, it returns that one's text, so that the
// digest stays.
func unlessEqual(text []byte, before, after any) ([]byte, error) {
	was, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	is, err := json.Marshal(after)
	if err == nil && bytes.Equal(was, is) {
		return text, nil
	}
	return is, err
}
