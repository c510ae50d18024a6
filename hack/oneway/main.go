// SPDX-License-Identifier: Apache-2.0

// Command oneway fails if files of one Go package refer to each other in a circle. A file refers to another if it uses
// a function, type, method, field, variable or constant declared there. Tests and generated files are not looked at.
//
// Usage: oneway [-v] PACKAGES
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	verbose := flag.Bool("v", false, "print every use that is part of a circle, not one for each pair of files")
	flag.Parse()
	circles, err := check(flag.Args(), *verbose, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "oneway:", err)
		os.Exit(2)
	}
	if circles > 0 {
		fmt.Fprintf(os.Stderr, "oneway: circles of files: %d: move the declarations that point back (-v lists all uses)\n",
			circles)
		os.Exit(1)
	}
}

// listed is a package as "go list -export -json" prints it.
type listed struct {
	ImportPath, Dir, Export string
	DepOnly                 bool
	GoFiles                 []string
}

// check prints the circles of each package that the patterns name, and returns their number.
func check(patterns []string, verbose bool, w io.Writer) (int, error) {
	packages, err := list(patterns)
	if err != nil {
		return 0, err
	}
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	lookup := func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("package %s: not compiled", path)
		}
		return os.Open(exports[path])
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", lookup)
	circles := 0
	for _, p := range packages {
		if p.DepOnly {
			continue
		}
		uses, err := usesOf(fset, p, imports)
		if err != nil {
			return 0, err
		}
		for _, circle := range circlesOf(uses) {
			circles++
			report(w, p.Dir, circle, uses, verbose)
		}
	}
	return circles, nil
}

// list returns the packages and what they depend on, compiled.
func list(patterns []string) ([]listed, error) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,DepOnly,GoFiles"}
	cmd := exec.Command("go", append(args, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
}

// usesOf returns the uses between the hand-written files of a package.
func usesOf(fset *token.FileSet, p listed, imports types.Importer) ([]use, error) {
	var files []*ast.File
	generated := map[string]bool{}
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		generated[name] = ast.IsGenerated(file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: imports}
	checked, err := config.Check(p.ImportPath, fset, files, info)
	if err != nil {
		return nil, err
	}
	var uses []use
	for ident, object := range info.Uses {
		if object.Pkg() != checked || isLocal(object, checked) {
			continue
		}
		at, declared := fset.Position(ident.Pos()), fset.Position(object.Pos())
		from, to := filepath.Base(at.Filename), filepath.Base(declared.Filename)
		if from != to && !generated[from] && !generated[to] {
			uses = append(uses, use{from: from, to: to, name: object.Name(), line: at.Line})
		}
	}
	return uses, nil
}

// isLocal reports whether an object is declared inside a function: it cannot be used in another file.
func isLocal(object types.Object, in *types.Package) bool {
	scope := object.Parent()
	return scope != nil && scope != in.Scope()
}
