// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"strings"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func isIndex(mediaType string) bool { return types.MediaType(mediaType).IsIndex() }

func isImage(mediaType string) bool { return types.MediaType(mediaType).IsImage() }

// isConfig reports whether a manifest with a configuration of this type is an image.
func isConfig(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageConfig || mediaType == string(types.DockerConfigJSON)
}

// foreign reports whether a layer must not be copied from registry to registry.
func foreign(d ocispec.Descriptor) bool {
	return strings.Contains(d.MediaType, "foreign") || strings.Contains(d.MediaType, "nondistributable") || len(d.URLs) > 0
}

func encrypted(d ocispec.Descriptor) bool { return strings.HasSuffix(d.MediaType, "+encrypted") }

// has reports whether a layer already has a format, at any level.
func (c Compression) has(d ocispec.Descriptor) bool {
	if c.Level != 0 {
		return false
	}
	format := None
	switch {
	case d.Annotations[zstdchunked.ManifestChecksumAnnotation] != "":
		format = ZstdChunked
	case d.Annotations[estargz.TOCJSONDigestAnnotation] != "":
		format = EStargz
	case strings.HasSuffix(d.MediaType, "gzip"):
		format = Gzip
	case strings.HasSuffix(d.MediaType, "zstd"):
		format = Zstd
	}
	return format == c.Format || format == EStargz && c.Format == Gzip || format == ZstdChunked && c.Format == Zstd
}

// mediaTypes are the media types of an image.
type mediaTypes struct{ index, manifest, config, none, gzip, zstd string }

var (
	ociTypes = mediaTypes{
		ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageConfig,
		ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageLayerZstd,
	}
	dockerTypes = mediaTypes{
		string(types.DockerManifestList), string(types.DockerManifestSchema2), string(types.DockerConfigJSON),
		string(types.DockerUncompressedLayer), string(types.DockerLayer), "",
	}
)

// typesFor returns the types of an image with a compression, given the type of the source. Docker's stay, but they
// have neither zstd nor the annotations of tables of contents.
func typesFor(source string, c Compression) mediaTypes {
	docker := source == dockerTypes.index || source == dockerTypes.manifest
	if docker && (c.Format == None || c.Format == Gzip) {
		return dockerTypes
	}
	return ociTypes
}

// layer returns the type of a layer.
func (t mediaTypes) layer(c Compression) string {
	switch c.Format {
	case Gzip, EStargz:
		return t.gzip
	case Zstd, ZstdChunked:
		return t.zstd
	}
	return t.none
}
