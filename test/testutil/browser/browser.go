// SPDX-License-Identifier: Apache-2.0

// Package browser runs the tests of ui/test in a real Chromium.
package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"wangell.loutres.me/test/testutil/checkout"
	"wangell.loutres.me/test/testutil/need"
)

// Need skips the test unless there are Chromium, Node.js and npm.
func Need(t testing.TB) {
	t.Helper()
	need.Program(t, "chromium", "chromium")
	need.Program(t, "node", "nodejs")
	need.Program(t, "npm", "npm")
}

// Run runs a file of ui/test with more environment. command makes its process, for example in a network namespace;
// nil makes a plain one. The output of the test is logged.
func Run(t testing.TB, command func(context.Context, ...string) *exec.Cmd, file string, env ...string) {
	t.Helper()
	dir := checkout.Dir(t)
	if out, err := exec.Command(filepath.Join(dir, "hack/ui.sh"), "install").CombinedOutput(); err != nil {
		t.Fatalf("hack/ui.sh install: %v\n%s", err, out)
	}
	if command == nil {
		command = func(ctx context.Context, argv ...string) *exec.Cmd {
			return exec.CommandContext(ctx, argv[0], argv[1:]...)
		}
	}
	cmd := command(t.Context(), "node", "--test", "--test-reporter=spec", file)
	cmd.Dir = filepath.Join(dir, "ui/test")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("%s: %v", file, err)
	}
}
