// SPDX-License-Identifier: Apache-2.0

package peer

import "time"

// sharing says what of a repository the mirror shares. A higher value is more.
type sharing uint8

// The values of sharing.
const (
	sharedNothing sharing = iota
	// sharedPublic: the images that the registry gives to everybody, and what their manifests name. Others of the
	// node's images may have been pulled with credentials.
	sharedPublic
	// sharedAll: the daemon itself pulls an image of the repository, without credentials.
	sharedAll
)

// public is whether the registry gives a manifest or index to everybody.
type public struct {
	err   error     // why it is not known to
	until time.Time // the end of an error
}

// maxSizes bounds the blobs whose sizes are remembered.
const maxSizes = 1 << 16
