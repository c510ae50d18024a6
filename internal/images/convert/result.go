// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"errors"

	"github.com/opencontainers/go-digest"
)

// Result is what became of an image.
type Result struct {
	Source      string        `json:"source"`
	Destination string        `json:"destination"`
	Digest      digest.Digest `json:"digest"`
	MediaType   string        `json:"mediaType"`
	// Images has the image of each platform.
	Images []Image `json:"images"`
	// Dropped are manifests of the source that were left out, with reasons.
	Dropped []Dropped `json:"dropped,omitempty"`
	// Verified is set if the file systems were compared, and are equal.
	Verified bool `json:"verified,omitempty"`
}

// Image is the image of a platform.
type Image struct {
	Platform string        `json:"platform"`
	Source   digest.Digest `json:"sourceDigest"`
	Digest   digest.Digest `json:"digest"`
	Before   []Layer       `json:"before"`
	After    []Layer       `json:"after"`
}

// Layer is a layer before or after.
type Layer struct {
	Digest digest.Digest `json:"digest"`
	Packed int64         `json:"packed"` // bytes
	// Unpacked is the size of the archive; 0: it was copied without being read.
	Unpacked int64 `json:"unpacked,omitempty"`
	// First is the number of packed bytes at the beginning that hold the files that come first.
	First int64 `json:"first,omitempty"`
}

// ErrNoneFirst is returned by Run if Options.First has no files for any layer.
var ErrNoneFirst = errors.New("no layer of the image has files that are to come first")

// Dropped is a manifest that was not converted.
type Dropped struct {
	Digest digest.Digest `json:"digest"`
	Reason string        `json:"reason"`
}
