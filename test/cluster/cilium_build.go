// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// clang is the compiler of Cilium's datapath, from Debian.
const clang = "/usr/bin/clang-19"

// ciliumModule is Cilium. Its operator is not among its programs: sigs.k8s.io/mcs-api/controllers, which it needs, is
// not available as a module.
var ciliumModule = module{
	name: "cilium", cni: cniCilium,
	ldflags: "-X github.com/cilium/cilium/pkg/version.ciliumVersion=" + strings.TrimPrefix(ciliumVersion, "v"),
	programs: map[string]string{
		"github.com/cilium/cilium/daemon":             ciliumService,
		"github.com/cilium/cilium/cilium-dbg":         "cilium-dbg",
		"github.com/cilium/cilium/plugins/cilium-cni": "cni/cilium-cni",
	},
}

func ciliumGoMod(source string) string {
	return filepath.Join(source, "modules", ciliumModule.name, "go.mod")
}

// ciliumDir returns the folder for everything of Cilium: its programs; bpf, the sources of its datapath, which the
// agent compiles on each node; crds, which its operator would create; and tools, with a compiler that is called clang.
func ciliumDir(bin string) string { return filepath.Join(bin, "cilium-"+ciliumVersion) }

// buildCilium builds Cilium's programs and copies the agent's other files out of its module.
func buildCilium(ctx context.Context, source, bin string, out io.Writer) error {
	if !exists(clang) {
		return fmt.Errorf("%s is missing: apt-get install --no-install-recommends clang-19", clang)
	}
	dir := ciliumDir(bin)
	goMod, err := os.ReadFile(ciliumGoMod(source))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "cni"), 0o755); err != nil {
		return err
	}
	unlock, err := lock(dir) // of its own: the build takes minutes, and clusters without Cilium need not wait
	if err != nil {
		return err
	}
	defer unlock()
	stamp := filepath.Join(dir, "go.mod") // is copied last
	if is, err := os.ReadFile(stamp); err == nil && bytes.Equal(is, goMod) {
		return nil
	}
	for _, program := range ciliumModule.programs { // of another go.mod
		if err := os.RemoveAll(filepath.Join(dir, program)); err != nil {
			return err
		}
	}
	if _, err := buildModule(ctx, source, dir, ciliumModule, out); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cilium/cilium")
	cmd.Dir = filepath.Dir(ciliumGoMod(source))
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	module, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("find Cilium's module: %w", err)
	}
	for from, to := range map[string]string{"bpf": "bpf", "pkg/k8s/apis/cilium.io/client/crds": "crds"} {
		from, to = filepath.Join(strings.TrimSpace(string(module)), from), filepath.Join(dir, to)
		if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
			return fmt.Errorf("copy %s of Cilium: %w", from, err)
		}
	}
	const loopback = "cni/loopback" // containerd runs it before any other plugin
	tools := filepath.Join(dir, "tools")
	err = errors.Join(os.RemoveAll(filepath.Join(dir, loopback)), os.RemoveAll(tools), os.Mkdir(tools, 0o755),
		os.Symlink(filepath.Join(bin, loopback), filepath.Join(dir, loopback)),
		os.Symlink(clang, filepath.Join(tools, "clang")))
	if err != nil {
		return err
	}
	return writeFile(stamp, goMod, 0o644)
}
