// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// longest is how many words a page may have: what is longer covers several subjects, and nobody finds the right one.
const longest = 1500

// mayBeLong are pages that may have more words: a generated reference, the wire, and pages about how a part works,
// which are read from the beginning.
var mayBeLong = []string{
	"manifest/reference.md", "protocol.md",
	"architecture.md", "cluster.md", "datapath.md", "images.md", "install-kubernetes.md", "lifecycle.md",
}

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
			if slices.Contains([]string{"adr", "experiments", "protocol"}, name) {
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
	for _, folder := range []string{"manifest", "operations"} {
		index := read(t, filepath.Join("..", "..", "docs", folder, "README.md"))
		pages, err := filepath.Glob(filepath.Join("..", "..", "docs", folder, "*.md"))
		if err != nil || len(pages) < 10 {
			t.Fatalf("%s: %d pages, %v", folder, len(pages), err)
		}
		for _, page := range pages {
			if name := filepath.Base(page); name != "README.md" && !strings.Contains(index, "]("+name) {
				t.Errorf("docs/%s/README.md does not name %s", folder, name)
			}
		}
	}
}
