// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// longest is how many words a page may have: what is longer covers several subjects, and nobody finds the right one.
const longest = 1500

// mayBeLong are pages that may have more words: the generated references.
var mayBeLong = []string{"manifest/reference.md", "protocol/messages.md"}

func TestPagesHaveOneSubject(t *testing.T) {
	root := filepath.Join("..", "..", "docs")
	pages := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{"adr", "experiments"}, name) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".md" {
			return nil
		}
		pages++
		if n := len(strings.Fields(read(t, path))); n > longest && !slices.Contains(mayBeLong, name) {
			t.Errorf("docs/%s: %d words, more than %d: make a page for each of its subjects", name, n, longest)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 30 {
		t.Errorf("found %d pages only", pages)
	}
}

// A page that no index names is found by nobody.
func TestPagesAreInTheirIndex(t *testing.T) {
	docs := filepath.Join("..", "..", "docs")
	indexes, err := filepath.Glob(filepath.Join(docs, "*", "README.md"))
	if err != nil || len(indexes) < 10 {
		t.Fatalf("%d indexes, %v", len(indexes), err)
	}
	for _, path := range append(indexes, filepath.Join(docs, "README.md")) {
		index, folder := read(t, path), filepath.Dir(path)
		pages, err := filepath.Glob(filepath.Join(folder, "*.md"))
		if err != nil {
			t.Fatal(err)
		}
		below, err := filepath.Glob(filepath.Join(folder, "*", "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range append(pages, below...) {
			name, err := filepath.Rel(folder, page)
			if err != nil {
				t.Fatal(err)
			}
			if name != "README.md" && !strings.Contains(index, "]("+name) {
				t.Errorf("%s does not name %s", path, name)
			}
		}
	}
}

// Comments and messages name pages for further reading: a page that is moved has to be renamed there, too.
func TestPagesThatCodeNamesExist(t *testing.T) {
	root := filepath.Join("..", "..")
	grep := exec.Command("git", "grep", "-hIoE", `(^|[^/])docs/[A-Za-z0-9_/-]+\.md\b`, "--", ".", ":!*_test.go")
	grep.Dir = root
	out, err := grep.Output()
	if err != nil {
		t.Fatalf("git grep: %v", err)
	}
	named := regexp.MustCompile(`docs/\S+`).FindAllString(string(out), -1) // without the character before it
	if len(named) < 50 {
		t.Fatalf("found %d names only", len(named))
	}
	slices.Sort(named)
	for _, page := range slices.Compact(named) {
		if _, err := os.Stat(filepath.Join(root, page)); err != nil {
			t.Errorf("%s: no such page, and something names it: git grep %s", page, page)
		}
	}
}
