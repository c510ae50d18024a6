// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// module is a Go module below modules, whose programs are built by one go build: it compiles the packages that they
// share once, and links one program while it compiles for the next.
type module struct {
	name    string
	ldflags string // for all its programs; a -X for a package that a program lacks has no effect
	cni     string // the pod network that needs the module; empty: every cluster does
	// programs maps the packages to the names of their programs.
	programs map[string]string
}

// builtName returns the name that go build gives to the program of a package: the last element of its path, or the one
// before if that is a major version.
func (m module) builtName(pkg string) string {
	if pkg == "." {
		return m.name
	}
	base := filepath.Base(pkg)
	if regexp.MustCompile(`^v[0-9]+$`).MatchString(base) {
		base = filepath.Base(filepath.Dir(pkg))
	}
	return base
}

// tags leave out what needs C libraries or is not used here.
const tags = "no_btrfs no_devmapper no_zfs no_aufs"

// buildModule builds the programs of a module that the folder lacks, and returns their number.
func buildModule(ctx context.Context, source, bin string, m module, out io.Writer) (int, error) {
	var missing []string
	for _, pkg := range slices.Sorted(maps.Keys(m.programs)) {
		if !exists(filepath.Join(bin, m.programs[pkg])) {
			missing = append(missing, pkg)
		}
	}
	if len(missing) == 0 {
		return 0, nil
	}
	dir, err := os.MkdirTemp(bin, "new-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-gcflags=all=-dwarf=false",
		"-buildvcs=false",
		"-tags", tags, "-ldflags", "-s -w " + m.ldflags, "-o", dir + "/"}, missing...)...)
	cmd.Dir = filepath.Join(source, "modules", m.name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build programs of module %s: %w\n%s", m.name, err, text)
	}
	// Renamed, so that a program is complete or missing.
	for _, pkg := range missing {
		if err := os.Rename(filepath.Join(dir, m.builtName(pkg)), filepath.Join(bin, m.programs[pkg])); err != nil {
			return 0, fmt.Errorf("module %s: %w", m.name, err)
		}
	}
	fmt.Fprintf(out, "module %-16s %d programs %7.1f s\n", m.name, len(missing), time.Since(start).Seconds())
	return len(missing), nil
}
