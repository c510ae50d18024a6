// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// page is a page for browsers that programs embed: the file to which its script is built, and the folder of its npm
// package.
type page struct{ script, folder string }

// lock is the part of a package-lock.json (version 3) that is used here. The package itself has an empty path.
type lock struct {
	Packages map[string]struct {
		Version   string `json:"version"`
		License   string `json:"license"`
		Integrity string `json:"integrity"`
		Dev       bool   `json:"dev"`
	} `json:"packages"`
}

// components returns the npm packages that a program contains: those that the page is built from, if the program
// embeds it.
func (p page) components(program []byte) ([]component, error) {
	script, err := os.ReadFile(p.script)
	if err != nil || len(script) == 0 || !bytes.Contains(program, script) {
		return nil, err
	}
	file := filepath.Join(p.folder, "package-lock.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var l lock
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var out []component
	for _, path := range slices.Sorted(maps.Keys(l.Packages)) {
		name, ok := strings.CutPrefix(path, "node_modules/")
		one := l.Packages[path]
		if !ok || one.Dev {
			continue // the package itself, and what only builds and tests it
		}
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(one.Integrity, "sha512-"))
		if err != nil || len(sum) != 64 || one.License == "" {
			return nil, fmt.Errorf("%s: %s: want a SHA-512 and a license", file, name)
		}
		c := component{
			Type: "library", Name: name, Version: one.Version, Scope: "required",
			Hashes: []hash{{"SHA-512", hex.EncodeToString(sum)}}, Licenses: []license{{one.License}},
			PURL: "pkg:npm/" + strings.ReplaceAll(name, "@", "%40") + "@" + one.Version,
		}
		c.Ref = c.PURL
		out = append(out, c)
	}
	return out, nil
}
