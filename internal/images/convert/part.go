// SPDX-License-Identifier: Apache-2.0

package convert

import ocispec "github.com/opencontainers/image-spec/specs-go/v1"

// part is a manifest of the source.
type part struct {
	desc     ocispec.Descriptor
	text     []byte
	manifest ocispec.Manifest
	config   []byte
	platform ocispec.Platform
	layers   []layer
}

func sizeOf(parts []*part) (total int64) {
	for _, p := range parts {
		for _, l := range p.layers {
			total += l.Size
		}
	}
	return total
}
