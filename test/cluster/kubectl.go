// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// kubectl runs kubectl with the cluster's kubeconfig and returns its output.
func kubectl(ctx context.Context, s *state, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "kubectl"),
		append([]string{"--kubeconfig=" + s.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

func apply(ctx context.Context, s *state, manifest string) error {
	_, err := kubectl(ctx, s, manifest, "apply", "-f", "-")
	return err
}
