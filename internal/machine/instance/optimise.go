// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/runtime/containerd"
)

// optimise rewrites an image in a separate process with the lowest priority: it uses all processors for a while, and
// services go first.
func (c Config) optimise(ctx context.Context, o containerd.Optimisation) (digest.Digest, error) {
	// selfExe, as other programs see it.
	return optimiseBy(ctx, fmt.Sprintf("/proc/%d/exe", os.Getpid()), o, c.InsecureRegistries)
}

// optimiseBy is optimise with the path of the program.
func optimiseBy(ctx context.Context, program string, o containerd.Optimisation, insecure []string) (digest.Digest,
	error) {
	args := []string{"image", "optimise", o.Source, o.Destination, "--snapshotter-root", o.Root, "-o", "json"}
	for _, r := range insecure {
		args = append(args, "--insecure-registry", r)
	}
	cmd := exec.Command(program, args...)
	if nice, err := exec.LookPath("nice"); err == nil {
		cmd = exec.Command(nice, append([]string{"-n", "19", program}, args...)...)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this process
	p, err := process.StartBound(cmd)
	if err != nil {
		return "", err
	}
	select {
	case <-p.Ended():
		p.Close()
	case <-ctx.Done():
		return "", errors.Join(ctx.Err(), p.Stop(childGrace))
	}
	if err := p.Err(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		if reason, ok := strings.CutPrefix(lines[len(lines)-1], lastWord); ok {
			err = errors.New(reason)
		}
		return "", err
	}
	var result struct{ Digest digest.Digest }
	if err := json.Unmarshal(stdout.Bytes(), &result); err != nil {
		return "", fmt.Errorf("the output of image optimise: %w", err)
	}
	return result.Digest, result.Digest.Validate()
}
