// SPDX-License-Identifier: Apache-2.0

// Package checkout finds the source tree that a test belongs to.
package checkout

import (
	"os/exec"
	"strings"
	"testing"
)

// Dir returns the root of the source tree, for tests of this module and of the modules beside it.
func Dir(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "wangell.loutres.me").Output()
	if err != nil {
		t.Fatalf("find the source tree: go list -m wangell.loutres.me: %v", err)
	}
	return strings.TrimSpace(string(out))
}
