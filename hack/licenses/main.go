// SPDX-License-Identifier: Apache-2.0

// Command licenses checks the licenses of all Go modules that the released programs link, and of the npm packages of
// the dashboard: each must be one that binaries under Apache-2.0 may contain. It reads the texts in the module cache
// and the names in ui/package-lock.json, and needs no network.
//
//	go run ./hack/licenses              check; print how many modules have which license
//	go run ./hack/licenses -text FILE   also write the texts of the modules' licenses, as a release has them
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	text := flag.String("text", "", "file for the texts of the licenses")
	flag.Parse()
	if err := run(os.Stdout, *text); err != nil {
		fmt.Fprintf(os.Stderr, "licenses: %v\n", err)
		os.Exit(1)
	}
}

func run(out io.Writer, textFile string) error {
	mods, err := modules()
	if err != nil {
		return err
	}
	npm, err := npmLicenses("ui/package-lock.json")
	if err != nil {
		return err
	}
	report, problems := check(mods, npm)
	if len(problems) > 0 {
		return fmt.Errorf("%d problems: use another library, or add the license to hack/licenses with a reason:\n%s",
			len(problems), strings.Join(problems, "\n"))
	}
	fmt.Fprintln(out, report)
	if textFile == "" {
		return nil
	}
	return os.WriteFile(textFile, texts(mods), 0o644)
}

// module is a Go module with its license files.
type module struct {
	path, version string
	files         []string // the texts of its license files
}

// licenseName matches names of files with licenses and notices.
var licenseName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)([._-].*)?$`)

// modules returns the modules that are linked into the programs for any released platform, sorted.
func modules() ([]module, error) {
	dirs := map[string]string{} // "path version": folder
	for _, programs := range []struct{ folder, system, packages string }{
		{".", "linux", "./cmd/..."}, {"lab", "linux", "./cmd/..."}, {".", "darwin", "./cmd/kubectl-wangell"},
	} {
		cmd := exec.Command("go", "list", "-C", programs.folder, "-deps", "-f",
			"{{with .Module}}{{.Path}} {{.Version}} {{.Dir}}{{end}}", programs.packages)
		cmd.Env = append(os.Environ(), "GOOS="+programs.system, "CGO_ENABLED=0", "GOWORK=off")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		list, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("list the modules of %s for %s: %w\n%s", programs.folder, programs.system, err,
				errs.String())
		}
		for line := range strings.Lines(string(list)) {
			f := strings.Fields(line)
			if len(f) == 3 { // this module has no version, or is replaced by a folder
				dirs[f[0]+" "+f[1]] = f[2]
			}
		}
	}
	var out []module
	for name, dir := range dirs {
		path, version, _ := strings.Cut(name, " ")
		if path == "wangell.loutres.me" {
			continue
		}
		m := module{path: path, version: version}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() && licenseName.MatchString(e.Name()) {
				b, err := os.ReadFile(filepath.Join(dir, e.Name()))
				if err != nil {
					return nil, err
				}
				m.files = append(m.files, string(b))
			}
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// allowed are the licenses under which a released program may contain something, as SPDX names them. A module under
// MPL-2.0 may be linked as it is; its source is where the bill of materials says.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "0BSD", "Unlicense"}

// marks are sentences that only the license of that name has, after normalise. The first that is found counts.
var marks = []struct{ name, text string }{
	{"MPL-2.0", "mozilla public license version 2.0"}, // first, as it names those of GNU
	{"MPL-2.0", "mozilla public license, version 2.0"},
	{"AGPL", "gnu affero general public license"},
	{"LGPL", "gnu lesser general public license"},
	{"GPL", "gnu general public license"},
	{"SSPL", "server side public license"},
	{"BUSL", "business source license"},
	{"CC-BY-4.0", "creative commons attribution 4.0 international"},
	{"Apache-2.0", "apache license version 2.0"},
	{"Apache-2.0", "licensed under the apache license, version 2.0"},
	{"BSD-3-Clause", "may be used to endorse or promote products derived from this software"},
	{"BSD-2-Clause", "redistributions in binary form must reproduce the above copyright notice"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy of this software"},
	{"ISC", "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"},
	{"ISC", "permission to use, copy, modify, and distribute this software for any purpose with or without fee"},
	{"Unlicense", "this is free and unencumbered software released into the public domain"},
}

// exceptions are modules that may be linked although their license is not one of allowed, or is not found by its text.
// All of them draw the plots of wangell-lab, and are in no other program.
var exceptions = map[string]string{
	"github.com/ajstarks/svgo":   "CC-BY-4.0", // its author and license are in the texts of the release
	"github.com/golang/freetype": "FTL",       // the FreeType License, or the GPL, at the choice of who uses it
}

// licenseOf returns the name of the license of a text; empty if it is none that is known.
func licenseOf(text string) string {
	text = normalise(text)
	for _, m := range marks {
		if strings.Contains(text, normalise(m.text)) {
			return m.name
		}
	}
	return ""
}

// normalise returns a text in lower case, with one space between words and without marks of comments.
func normalise(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return strings.ContainsRune(" \t\r\n*#/", r)
	}), " ")
}

// check returns how many modules and packages have which license, or what is wrong.
func check(mods []module, npm map[string]string) (report string, problems []string) {
	count := map[string]int{}
	for _, m := range mods {
		name, known := exceptions[m.path]
		if !known {
			found := map[string]bool{}
			for _, text := range m.files {
				if n := licenseOf(text); n != "" {
					found[n] = true
				}
			}
			for _, n := range slices.Sorted(maps.Keys(found)) {
				if name == "" || !slices.Contains(allowed, n) {
					name = n // one that is not allowed counts
				}
			}
		}
		switch {
		case known:
		case name == "":
			problems = append(problems, fmt.Sprintf("%s %s: no license that is known in its %d license files", m.path,
				m.version, len(m.files)))
		case !slices.Contains(allowed, name):
			problems = append(problems, fmt.Sprintf("%s %s: %s", m.path, m.version, name))
		}
		count[name]++
	}
	for pkg, name := range npm {
		if !slices.Contains(allowed, name) {
			problems = append(problems, fmt.Sprintf("npm package %s: license %q", pkg, name))
		}
		count[name]++
	}
	slices.Sort(problems)
	var parts []string
	for _, name := range slices.Concat(allowed, slices.Sorted(maps.Values(exceptions))) {
		if count[name] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, count[name]))
		}
	}
	return fmt.Sprintf("licenses of %d Go modules and %d npm packages: %s", len(mods), len(npm),
		strings.Join(parts, ", ")), problems
}

// npmLicenses returns the licenses of the packages in a lock file that are part of the built page.
func npmLicenses(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var lock struct {
		Packages map[string]struct {
			Dev     bool   `json:"dev"`
			License string `json:"license"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(b, &lock); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	out := map[string]string{}
	for name, p := range lock.Packages {
		if name != "" && !p.Dev {
			out[strings.TrimPrefix(name, "node_modules/")] = p.License
		}
	}
	return out, nil
}

// texts returns the license files of all modules, each text once, after the modules that have it.
func texts(mods []module) []byte {
	var order []string
	of := map[string][]string{}
	for _, m := range mods {
		for _, text := range m.files {
			if of[text] == nil {
				order = append(order, text)
			}
			of[text] = append(of[text], m.path+" "+m.version)
		}
	}
	var b bytes.Buffer
	for _, text := range order {
		for _, name := range of[text] {
			fmt.Fprintf(&b, "== %s\n", name)
		}
		fmt.Fprintf(&b, "\n%s\n\n", strings.TrimSpace(text))
	}
	return b.Bytes()
}
