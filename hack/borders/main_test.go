// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

func TestImportsAcrossBordersAreFound(t *testing.T) {
	for _, c := range []struct {
		name, imports string
		crosses       bool
	}{
		{"api/v1alpha1", "internal/base/text", true},
		{"internal/base/text", "internal/base/host", false},
		{"internal/base/text", "api/v1alpha1", true},
		{"internal/decide/scale", "internal/base/monotime", false},
		{"internal/decide/scale", "internal/runtime", true},
		{"internal/gate", "internal/decide/sources", false},
		{"internal/gate", "internal/decide/scale", true},
		{"internal/wire", "internal/gate", true},
		{"internal/status", "internal/decide/lifecycle", false},
		{"internal/status", "internal/runtime", true},
		{"internal/runtime/kube", "internal/kube/operator", true},
		{"internal/runtime/kube", "internal/kubernetes", false},
		{"internal/images/peer", "internal/controller/images", true},
		{"internal/node", "internal/controller", true},
		{"internal/controller", "internal/node/envoy", true},
		{"internal/controller", "internal/node/readiness", false},
		{"internal/kube/operator", "internal/machine/manifest", true},
		{"internal/machine/instance", "internal/kube/tunnel", true},
		{"internal/show/view", "internal/controller", true},
		{"internal/show/view", "internal/wire", true},
		{"internal/show/view", "internal/status", false},
	} {
		if got := crossings(borders, c.name, []string{c.imports}); (len(got) == 1) != c.crosses {
			t.Errorf("%s imports %s: %q, want a crossing: %t", c.name, c.imports, got, c.crosses)
		}
	}
}

func TestProgramsThatLinkWhatTheyMustNotAreFound(t *testing.T) {
	got := crossings(links, "cmd/kubectl-wangell", []string{"internal/status", "internal/wire", "internal/gate"})
	want := []string{"cmd/kubectl-wangell must not know internal/wire", "cmd/kubectl-wangell must not know internal/gate"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestEveryRoomHasABorder fails for a new folder of internal until it has rules.
func TestEveryRoomHasABorder(t *testing.T) {
	for name := range list("../../internal/...") {
		if !slices.ContainsFunc(borders, func(b border) bool { return within(name, b.folder) }) {
			t.Errorf("%s is in no folder that has a border", name)
		}
	}
}
