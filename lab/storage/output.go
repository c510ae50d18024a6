// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// output runs a command and returns its standard output. The error has the end of its standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		text := strings.TrimSpace(stderr.String())
		return out, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, text[max(0, len(text)-2000):])
	}
	return out, nil
}

// versionOf asks a program for its version.
func versionOf(ctx context.Context, name string, argv ...string) (map[string]string, error) {
	out, err := output(exec.CommandContext(ctx, argv[0], argv[1:]...))
	if err != nil {
		return nil, err
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return map[string]string{name + " (client)": line}, nil
}
