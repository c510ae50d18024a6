// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// ProgramVersion returns the version of a containerd program, such as 2.4.2, without what distributions append.
func ProgramVersion(ctx context.Context, program string) (string, error) {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", program, err)
	}
	fields := strings.Fields(string(out)) // containerd PACKAGE VERSION REVISION
	if len(fields) < 3 {
		return "", fmt.Errorf("%s --version: %q names no version", program, out)
	}
	version, _, _ := strings.Cut(strings.TrimPrefix(fields[2], "v"), "~")
	return version, nil
}
