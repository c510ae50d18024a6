// SPDX-License-Identifier: Apache-2.0

package image

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Services find images by their full names.
func TestNamesOfTarballsAreCompletedAsDockerDoes(t *testing.T) {
	of := func(list ...string) (out []images.Image) {
		for _, text := range list {
			name, sum, _ := strings.Cut(text, " ")
			target := ocispec.Descriptor{}
			target.Digest = "sha256:a"
			if sum != "" {
				target.Digest = "sha256:b"
			}
			out = append(out, images.Image{Name: name, Target: target})
		}
		return out
	}
	for _, c := range []struct {
		list []images.Image
		tag  string
		want string // names, or an error
	}{
		{of("local/x:v1"), "", "docker.io/local/x:v1"},
		{of("v1"), "", "docker.io/library/v1:latest"},
		{of("docker.io/library/nginx:1.28"), "", "docker.io/library/nginx:1.28"},
		{of("localhost:5000/a"), "", "localhost:5000/a:latest"},
		{of("a:1", "b:2 other", ""), "", "docker.io/library/a:1 docker.io/library/b:2"},
		{of("v1"), "registry.example.com/app:v2", "registry.example.com/app:v2"},
		{of(""), "app", "docker.io/library/app:latest"},
		{of("a:1", "b:2"), "app", "docker.io/library/app:latest"}, // two names of one image
		{of("a:1", "b:2 other"), "app", "several images"},
		{of(""), "", "--tag"}, {nil, "", "--tag"}, {nil, "app", "--tag"},
		{of("UPPER:x"), "", `"UPPER:x" is no name`}, {of("a"), "a b", `"a b" is no name`},
	} {
		got, err := named(c.list, c.tag)
		var names []string
		for _, i := range got {
			names = append(names, i.Name)
		}
		if err == nil && strings.Join(names, " ") != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v as %q: %q, %v; want %q", c.list, c.tag, names, err, c.want)
		}
	}
}
