// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	architecture = "../../docs/architecture.md"
	waysPage     = "../../docs/ways.md"
	internal     = "../../internal"
)

// treeOf returns the folders that the tree of internal in a page names: rooms, and what is in them.
func treeOf(page string) []string {
	_, rest, _ := strings.Cut(page, "## The tree of internal\n\n```text\n")
	block, _, _ := strings.Cut(rest, "```")
	var all []string
	room := ""
	for line := range strings.Lines(block) {
		name := strings.Fields(line)[0]
		if strings.HasPrefix(line, " ") {
			name = filepath.Join(room, name)
		} else {
			room = name
		}
		all = append(all, filepath.Clean(name))
	}
	return all
}

// folders returns the folders below internal that have code, two levels deep.
func folders(t *testing.T) []string {
	var all []string
	for _, pattern := range []string{"*", "*/*"} {
		found, err := filepath.Glob(filepath.Join(internal, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			code, _ := filepath.Glob(filepath.Join(f, "*.go"))
			name, err := filepath.Rel(internal, f)
			if err != nil {
				t.Fatal(err)
			}
			if len(code) > 0 {
				all = append(all, name)
			}
		}
	}
	return all
}

func TestArchitectureHasTheTreeOfInternal(t *testing.T) {
	page := read(t, architecture)
	tree, is := treeOf(page), folders(t)
	if len(is) < 20 {
		t.Fatalf("found %d folders only: %v", len(is), is)
	}
	for _, name := range is {
		if !slices.Contains(tree, name) {
			t.Errorf("internal/%s: docs/architecture.md does not have it in its tree", name)
		}
	}
	for i, name := range tree {
		if !slices.Contains(is, name) {
			t.Errorf("docs/architecture.md: its tree has %s, and internal has no such package", name)
		}
		if slices.Contains(tree[:i], name) {
			t.Errorf("docs/architecture.md: its tree has %s twice", name)
		}
	}
}

func TestEveryRoomSaysWhatItMayImport(t *testing.T) {
	for _, name := range folders(t) {
		if strings.Contains(name, "/") {
			continue
		}
		doc := read(t, filepath.Join(internal, name, "doc.go"))
		first, _, _ := strings.Cut(doc, "//\n")
		if !strings.Contains(doc, "\n// Package "+name+" ") || !strings.Contains(first, "import") {
			t.Errorf("internal/%s/doc.go: its first paragraph does not say what lives there and what may be imported", name)
		}
	}
}

// The page follows a SYN, a field and an image by names of the code. A name that is renamed there is renamed here.
func TestNamesOfTheWaysAreThoseOfTheCode(t *testing.T) {
	ways := read(t, waysPage)
	list := exec.Command("git", "grep", "-hE", `^(func|type|static|__noinline)|^	Type|^type`, "--",
		"../../internal", "../../api", "../../bpf")
	code, err := list.Output()
	if err != nil {
		t.Fatalf("git grep: %v", err)
	}
	names := regexp.MustCompile("`([A-Za-z]\\w*\\.)?([A-Za-z]\\w*)`").FindAllStringSubmatch(ways, -1)
	if len(names) < 40 {
		t.Fatalf("found %d names only", len(names))
	}
	for _, m := range names {
		if m[1] == "" && m[2] == strings.ToLower(m[2]) && !strings.Contains(m[2], "_") {
			continue // a folder
		}
		if m[2] == "c" || m[2] == "h" || m[2] == "go" || m[2] == "md" {
			continue // a file
		}
		if !regexp.MustCompile(`\b` + m[2] + `\b`).Match(code) {
			t.Errorf("docs/ways.md names %s, which nothing declares", strings.Trim(m[0], "`"))
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
