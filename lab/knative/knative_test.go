// SPDX-License-Identifier: Apache-2.0

package knative

import "testing"

func TestImageVersionIsTheTag(t *testing.T) {
	for reference, want := range map[string]string{
		"registry.cluster.local:5000/knative/queue:v0.48.0@sha256:00": "v0.48.0",
		"registry.cluster.local:5000/knative/queue":                   "registry.cluster.local:5000/knative/queue",
		"a/b:1": "1",
	} {
		if got := imageVersion(reference); got != want {
			t.Errorf("%s: %s, want %s", reference, got, want)
		}
	}
}
