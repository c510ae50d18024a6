// SPDX-License-Identifier: Apache-2.0

// Command borders fails if a package imports one of a room (a folder of internal) that it may not know, or if a program
// links one. docs/architecture.md says what the rooms are for.
//
// Usage: borders
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

const module = "wangell.loutres.me/"

// A border says what the packages in a folder may import of this repository. Packages of one folder may always import
// each other.
type border struct {
	folder string
	only   []string // nothing but these folders, unless it is nil
	never  []string // not these folders
}

var borders = []border{
	{folder: "api", only: []string{}},
	{folder: "internal/base", only: []string{}},
	{folder: "internal/decide", only: []string{"internal/base", "api"}},
	{folder: "internal/gate", only: []string{"internal/base", "internal/decide/sources"}},
	{folder: "internal/wire", only: []string{"internal/base", "internal/decide/sources"}},
	{folder: "internal/status", only: []string{"internal/base", "internal/decide", "api"}},
	{folder: "internal/runtime", never: []string{"internal/controller", "internal/gate", "internal/wire", "internal/show", "internal/kube"}},
	{folder: "internal/images", never: []string{"internal/controller", "internal/gate", "internal/show"}},
	{folder: "internal/node", never: []string{"internal/controller", "internal/show", "internal/machine"}},
	{folder: "internal/controller", never: []string{"internal/gate", "internal/node/envoy", "internal/machine", "internal/show"}},
	{folder: "internal/kube", never: []string{"internal/machine", "internal/gate"}},
	{folder: "internal/machine", never: []string{"internal/kube"}},
	{folder: "internal/show", never: []string{"internal/controller", "internal/gate", "internal/wire", "internal/node"}},
}

// links are programs, and what they must not link, directly or indirectly.
var links = []border{
	{folder: "cmd/kubectl-wangell", never: []string{"internal/gate", "internal/wire", "internal/controller"}},
}

func main() {
	found, err := check(os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "borders:", err)
		os.Exit(2)
	}
	if found > 0 {
		fmt.Fprintf(os.Stderr, "borders: %d imports cross a border: docs/architecture.md says what each room is for\n", found)
		os.Exit(1)
	}
}

// check prints what crosses a border, and returns how many imports do.
func check(w io.Writer) (found int, err error) {
	packages, err := list("./api/...", "./cmd/...", "./internal/...")
	if err != nil {
		return 0, err
	}
	for name, imports := range packages {
		found += crossings(w, "imports", borders, name, imports)
	}
	for _, l := range links {
		deps, err := list("-deps", "./"+l.folder)
		if err != nil {
			return 0, err
		}
		var names []string
		for name := range deps {
			names = append(names, name)
		}
		found += crossings(w, "links", []border{l}, l.folder, names)
	}
	return found, nil
}

// crossings prints which of the imports of a package its borders do not allow, and returns their number.
func crossings(w io.Writer, verb string, borders []border, name string, imports []string) (n int) {
	for _, b := range borders {
		if !within(name, b.folder) {
			continue
		}
		for _, i := range slices.Sorted(slices.Values(imports)) {
			in := func(folder string) bool { return within(i, folder) }
			if slices.ContainsFunc(b.never, in) || b.only != nil && !in(b.folder) && !slices.ContainsFunc(b.only, in) {
				fmt.Fprintf(w, "%s %s %s\n", name, verb, i)
				n++
			}
		}
	}
	return n
}

func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

// list returns the packages of this repository that go list names, without the module's path, and their imports.
func list(args ...string) (map[string][]string, error) {
	cmd := exec.Command("go", append([]string{"list", "-f", `{{.ImportPath}} {{join .Imports " "}}`}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", path.Join(cmd.Args[1:]...), err)
	}
	packages := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name, ok := strings.CutPrefix(name, module); ok {
			packages[name] = nil
			for _, i := range strings.Fields(rest) {
				if i, ok := strings.CutPrefix(i, module); ok {
					packages[name] = append(packages[name], i)
				}
			}
		}
	}
	return packages, nil
}
