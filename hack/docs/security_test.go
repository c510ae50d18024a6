// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// SECURITY.md promises what tests show. Each row of its table names some, and these exist.
func TestSecurityIsShownByTests(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
	for _, room := range []string{"cmd", "deploy", "internal", "lab", "test"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, m := range function.FindAllStringSubmatch(string(source), -1) {
				exists[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, table, ok := strings.Cut(string(text), "| who | what they can do |")
	if !ok {
		t.Fatal("SECURITY.md has no table of who can do what")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	name, rows := regexp.MustCompile("`(Test[A-Za-z0-9]+)`"), 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| a") {
			continue
		}
		rows++
		named := name.FindAllStringSubmatch(line, -1)
		if len(named) == 0 {
			t.Errorf("no test shows: %s", line)
		}
		for _, m := range named {
			if !exists[m[1]] {
				t.Errorf("there is no %s", m[1])
			}
		}
	}
	if rows < 10 {
		t.Errorf("%d rows", rows)
	}
}
