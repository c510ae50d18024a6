// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"

	"wangell.loutres.me/internal/images/tarserve"
)

// source is where an image comes from.
type source struct {
	ref      string
	insecure []string
	server   *tarserve.Server // nil if the image is in a registry
}

// findSource returns the source of an image. A name of an existing file is a tarball, which is served on a loopback
// address.
func findSource(image string, insecure []string) (source, error) {
	if info, err := os.Stat(image); err == nil && info.Mode().IsRegular() {
		server, err := tarserve.Start(image)
		if err != nil {
			return source{}, err
		}
		return source{ref: server.Ref(), insecure: insecure, server: server}, nil
	} else if strings.HasPrefix(image, "/") || strings.HasPrefix(image, ".") || strings.HasSuffix(image, ".tar") {
		if err == nil {
			err = errors.New("not a regular file")
		}
		return source{}, fmt.Errorf("tarball %s: %w", image, err)
	}
	ref, err := normalized(image)
	return source{ref: ref, insecure: insecure}, err
}

func (s source) close() {
	if s.server != nil {
		s.server.Close()
	}
}

// plain returns the registries that are accessed over plain HTTP.
func (s source) plain() []string {
	all := slices.Clone(s.insecure)
	if local, err := docker.MatchLocalhost(s.host()); local && err == nil && !slices.Contains(all, s.host()) {
		all = append(all, s.host())
	}
	return all
}

// host returns the registry of the image.
func (s source) host() string {
	named, err := reference.ParseDockerRef(s.ref)
	if err != nil {
		return ""
	}
	return reference.Domain(named)
}

// normalized completes a reference with its registry and tag.
func normalized(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", fmt.Errorf("image %q: %w: write [REGISTRY/]NAME[:TAG], or the path of a tarball", ref, err)
	}
	return named.String(), nil
}
