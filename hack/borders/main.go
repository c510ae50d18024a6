// SPDX-License-Identifier: Apache-2.0

// Command borders fails if a package imports, or a program links, a room of internal that it may not know.
// docs/architecture.md says what the rooms are for.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const module = "wangell.loutres.me/"

// A border says what the packages in a folder may import of this repository, beside that folder.
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
	{folder: "internal/runtime", never: rooms("controller gate wire show kube")},
	{folder: "internal/images", never: rooms("controller gate show")},
	{folder: "internal/node", never: rooms("controller show machine")},
	{folder: "internal/controller", never: rooms("gate machine show node/envoy")},
	{folder: "internal/kube", never: rooms("machine gate")},
	{folder: "internal/machine", never: rooms("kube")},
	{folder: "internal/show", never: rooms("controller gate wire node")},
}

// links are programs, and what they must not link, directly or indirectly.
var links = []border{{folder: "cmd/kubectl-wangell", never: rooms("controller gate wire")}}

func rooms(names string) []string {
	return strings.Fields("internal/" + strings.ReplaceAll(names, " ", " internal/"))
}

func main() {
	var found []string
	for name, imports := range list("./api/...", "./cmd/...", "./internal/...") {
		found = append(found, crossings(borders, name, imports)...)
	}
	for _, l := range links {
		for name := range list("-deps", "./"+l.folder) {
			found = append(found, crossings([]border{l}, l.folder, []string{name})...)
		}
	}
	if len(found) > 0 {
		slices.Sort(found)
		fmt.Fprintf(os.Stderr, "%s\nborders: docs/architecture.md says what each room is for\n", strings.Join(found, "\n"))
		os.Exit(1)
	}
}

// crossings returns which imports of a package its borders do not allow, as "PACKAGE must not know PACKAGE".
func crossings(borders []border, name string, imports []string) (found []string) {
	for _, b := range borders {
		for _, i := range imports {
			in := func(folder string) bool { return within(i, folder) }
			if within(name, b.folder) && !in(b.folder) &&
				(slices.ContainsFunc(b.never, in) || b.only != nil && !slices.ContainsFunc(b.only, in)) {
				found = append(found, name+" must not know "+i)
			}
		}
	}
	return found
}

func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

// list returns the packages of this repository that go list names, and what they import of it, without its path.
func list(args ...string) map[string][]string {
	cmd := exec.Command("go", append([]string{"list", "-f", `{{.ImportPath}} {{join .Imports " "}}`}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "borders: go list:", err)
		os.Exit(2)
	}
	packages := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		own := slices.DeleteFunc(strings.Fields(line), func(s string) bool { return !strings.HasPrefix(s, module) })
		for i := range own {
			own[i] = strings.TrimPrefix(own[i], module)
		}
		if len(own) > 0 {
			packages[own[0]] = own[1:]
		}
	}
	return packages
}
