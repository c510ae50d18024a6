// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/envoytest"
)

// componentsDir has the module that pins the versions of the programs.
const componentsDir = "components"

// programs are the programs by name, and their packages, which the manifests reference as "ko://PACKAGE".
var programs = map[string]string{
	"activator":  "knative.dev/serving/cmd/activator",
	"autoscaler": "knative.dev/serving/cmd/autoscaler",
	"controller": "knative.dev/serving/cmd/controller",
	"kourier":    "knative.dev/net-kourier/cmd/kourier",
	"queue":      "knative.dev/serving/cmd/queue",
	"webhook":    "knative.dev/serving/cmd/webhook",
}

// modules are the modules of the programs and manifests.
var modules = []string{
	"knative.dev/serving", "knative.dev/net-kourier", "knative.dev/networking", "knative.dev/caching",
}

// module is one of modules, in the module cache.
type module struct{ Path, Version, Dir string }

// built is the result of build.
type built struct {
	Bin     string            // folder with the programs, envoy too
	Modules map[string]module // by path
	Envoy   string            // its version
}

// version returns the version of a program.
func (b *built) version(program string) string {
	if program == "envoy" {
		return "v" + b.Envoy
	}
	pkg := programs[program]
	path, _, _ := strings.Cut(pkg, "/cmd/")
	return b.Modules[path].Version
}

// build builds the programs into a folder of the user's cache, unless it exists. The name of the folder has a hash of
// everything that the programs depend on.
func build(ctx context.Context, log io.Writer) (*built, error) {
	b := &built{Modules: map[string]module{}}
	for _, path := range modules {
		m, err := findModule(ctx, path)
		if err != nil {
			return nil, err
		}
		b.Modules[path] = m
	}
	b.Envoy = envoytest.Version()
	sums, err := os.ReadFile(filepath.Join(componentsDir, "go.sum"))
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	cache = filepath.Join(cache, "wangell", "knative")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	defer unlock()
	parts := [][]byte{sums, []byte(envoytest.Wheels), []byte(runtime.Version() + runtime.GOARCH)}
	key := sha256.Sum256(bytes.Join(parts, []byte{0}))
	b.Bin = filepath.Join(cache, fmt.Sprintf("%s-%s-%x", b.version("controller"), b.version("envoy"), key[:6]))
	if _, err := os.Stat(b.Bin); err == nil {
		fmt.Fprintln(log, "built before:", b.Bin)
		return b, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("build: %w", err)
	}
	begin := time.Now()
	dir, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := fetchEnvoy(ctx, dir); err != nil {
		return nil, err
	}
	args := []string{"build", "-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false", "-ldflags=-s -w",
		"-o", dir + "/"}
	for _, program := range sortedPrograms() {
		args = append(args, programs[program])
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = componentsDir, append(componentsEnv(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build Knative: %w\n%s", err, tail(out))
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	if err := os.Rename(dir, b.Bin); err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	fmt.Fprintf(log, "built in %.0f s: %s\n", time.Since(begin).Seconds(), b.Bin)
	return b, nil
}

// componentsEnv is the environment of the go command for the module of the components, which is outside the workspace.
func componentsEnv() []string { return append(os.Environ(), "GOWORK=off") }

// findModule downloads a module into the module cache and returns its place there.
func findModule(ctx context.Context, path string) (module, error) {
	m := module{Path: path}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", path)
	cmd.Dir, cmd.Env = componentsDir, componentsEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return m, fmt.Errorf("download module %s: %w\n%s", path, err, tail(out))
	}
	cmd = exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}} {{.Dir}}", path)
	cmd.Dir, cmd.Env = componentsDir, componentsEnv()
	out, err := cmd.Output()
	if err != nil {
		return m, fmt.Errorf("find module %s: %w", path, err)
	}
	var found bool
	if m.Version, m.Dir, found = strings.Cut(strings.TrimSpace(string(out)), " "); !found || m.Dir == "" {
		return m, fmt.Errorf("find module %s: go list says %q, want a version and a folder", path, out)
	}
	return m, nil
}

// fetchEnvoy puts Envoy into a folder.
func fetchEnvoy(ctx context.Context, dir string) error {
	program, err := envoytest.Fetch(ctx)
	if err != nil {
		return err
	}
	in, err := os.Open(program)
	if err != nil {
		return fmt.Errorf("fetch Envoy: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, "envoy"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return fmt.Errorf("fetch Envoy: %w", err)
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("fetch Envoy: %w", err)
	}
	return nil
}

// lock waits for the exclusive lock of a file.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// tail returns the end of a program's output, which has the reason of a failure.
func tail(out []byte) []byte { return bytes.TrimSpace(out[max(0, len(out)-4096):]) }

// sortedPrograms returns the names of the programs.
func sortedPrograms() []string { return slices.Sorted(maps.Keys(programs)) }
