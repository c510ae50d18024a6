// SPDX-License-Identifier: Apache-2.0

// Package imageref handles names of images.
package imageref

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
	godigest "github.com/opencontainers/go-digest"
)

// Fixed pins an image name to a digest: it returns the repository and the digest. The tag is left out, because not
// every container runtime accepts both. Without a valid digest, and for a name that is invalid or already has a
// digest, it returns ref.
func Fixed(ref, digest string) string {
	if godigest.Digest(digest).Validate() != nil || strings.Contains(ref, "@") {
		return ref
	}
	repository := Repository(ref)
	if repository == "" {
		return ref
	}
	return repository + "@" + digest
}

// Repository returns the repository of an image with its registry: "docker.io/library/nginx" for "nginx:1.29". It is
// empty if ref is not valid.
func Repository(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ""
	}
	return named.Name()
}

// Registry returns the registry of an image, with its port if it names one: "docker.io" for "nginx". It is empty if ref
// is not valid.
func Registry(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ""
	}
	return reference.Domain(named)
}

// optimisedSuffix is appended to an image's tag for the tag of its optimised result.
const optimisedSuffix = "-optimised"

// Optimised returns the name of the optimised result of an image: the image's full name, with "-optimised" after the
// tag.
func Optimised(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w", ref, err)
	}
	tagged, ok := named.(reference.Tagged)
	if !ok {
		return "", fmt.Errorf("image %q is named by its digest: the result needs a tag", ref)
	}
	return named.Name() + ":" + tagged.Tag() + optimisedSuffix, nil
}
