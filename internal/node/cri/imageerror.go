// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons of an ImageError, as they appear in the condition ImageReady.
const (
	ReasonNotFound        = "NotFound"
	ReasonUnauthorized    = "Unauthorized"
	ReasonTooManyRequests = "TooManyRequests"
	ReasonDiskFull        = "DiskFull"
	ReasonUnreachable     = "Unreachable"
	ReasonPullFailed      = "PullFailed"
)

// ImageError is why an image cannot be pulled.
type ImageError struct {
	// Reason is one of the Reason constants.
	Reason string
	text   string
	cause  error
}

// NewImageError returns an ImageError with a text of its own, which says what failed and what to do.
func NewImageError(reason, text string, cause error) *ImageError {
	return &ImageError{reason, text, cause}
}

// Error says what failed and what to do, without the image's name.
func (e *ImageError) Error() string { return e.text }

// Unwrap returns the runtime's error.
func (e *ImageError) Unwrap() error { return e.cause }

// Explain turns the error of a pull of ref into an *ImageError for users. Runtimes report most failures as text only;
// the patterns match those of containerd and CRI-O.
func Explain(ref string, err error) *ImageError {
	registry := "of the image"
	if named, parseErr := reference.ParseDockerRef(ref); parseErr == nil {
		registry = reference.Domain(named)
	}
	s := status.Convert(err)
	text := strings.ToLower(s.Message())
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("no space left on device", "disk quota exceeded"):
		return &ImageError{ReasonDiskFull, "pull: no space left on device where the node keeps images: free some space", err}
	// Before "denied:", which registries add to it.
	case has("429 too many requests", "toomanyrequests"):
		return &ImageError{ReasonTooManyRequests, fmt.Sprintf("registry %s limits pulls (pull 429): give the nodes' "+
			"container runtime credentials for the registry, or a mirror", registry), err}
	// Before "not found": some registries say "does not exist or may require authorization".
	case has("401 unauthorized", "403 forbidden", "authorization failed", "access denied", "unauthorized:", "denied:"):
		return &ImageError{ReasonUnauthorized, fmt.Sprintf("registry %s refuses it (pull 401): check spec.image, or give "+
			"the nodes' container runtime credentials for the registry", registry), err}
	case s.Code() == codes.NotFound, has("404 not found", ": not found", "manifest unknown", "name unknown"):
		return &ImageError{ReasonNotFound, "not found in registry (pull 404): check spec.image", err}
	case has("no such host"):
		return &ImageError{ReasonUnreachable, fmt.Sprintf("registry %s has no address: check spec.image and the node's DNS",
			registry), err}
	case has("dial tcp", "connection refused", "i/o timeout", "connection reset", "handshake timeout"):
		return &ImageError{ReasonUnreachable, fmt.Sprintf("registry %s does not answer (%s): check spec.image and the "+
			"node's network", registry, lastPart(s.Message())), err}
	}
	return &ImageError{ReasonPullFailed, "pull: " + s.Message(), err}
}

// lastPart returns what follows the last mention of the dial in a chain of errors.
func lastPart(text string) string {
	if i := strings.LastIndex(text, "dial tcp"); i >= 0 {
		return text[i:]
	}
	return text
}
