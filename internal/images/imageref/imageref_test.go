// SPDX-License-Identifier: Apache-2.0

package imageref

import (
	"strings"
	"testing"
)

func TestAFixedNameHasTheDigestInsteadOfTheTag(t *testing.T) {
	digest := "sha256:" + strings.Repeat("5", 64)
	for ref, want := range map[string]string{
		"nginx":                             "docker.io/library/nginx@" + digest,
		"nginx:1.29":                        "docker.io/library/nginx@" + digest,
		"registry.example:5000/team/app:v1": "registry.example:5000/team/app@" + digest,
		"registry.example/app@" + digest:    "registry.example/app@" + digest,
		"r.example/app:v1@" + digest:        "r.example/app:v1@" + digest,
		"Not An Image":                      "Not An Image",
	} {
		if got := Fixed(ref, digest); got != want {
			t.Errorf("%s: got %s, want %s", ref, got, want)
		}
	}
	if got := Fixed("nginx:1.29", ""); got != "nginx:1.29" {
		t.Errorf("without a digest: %s", got)
	}
}

func TestARegistryIsNamedWithItsPort(t *testing.T) {
	for ref, want := range map[string]string{
		"nginx": "docker.io", "team/app:v1": "docker.io", "registry.example:5000/team/app:v1": "registry.example:5000",
		"localhost/app": "localhost", "Not An Image": "",
	} {
		if got := Registry(ref); got != want {
			t.Errorf("%s: got %q, want %q", ref, got, want)
		}
	}
}

func TestTheResultIsNamedAfterTheImage(t *testing.T) {
	for image, want := range map[string]string{
		"registry.example/a/bc:v1":                        "registry.example/a/bc:v1-optimised",
		"registry.example:5000/abc":                       "registry.example:5000/abc:latest-optimised",
		"r.example/abc@sha256:" + strings.Repeat("5", 64): "",
		"redis":                           "docker.io/library/redis:latest-optimised",
		"not an image":                    "",
		"registry.example/abc:v1-flavour": "registry.example/abc:v1-flavour-optimised",
	} {
		if got, err := Optimised(image); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", image, got, err, want)
		}
	}
}
