// SPDX-License-Identifier: Apache-2.0

// Package docs tests the repository's Markdown.
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

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	inText  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchor is the fragment that GitHub gives a heading.
func anchor(heading string) string {
	text := inText.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "$1")
	return strings.ReplaceAll(dropped.ReplaceAllString(text, ""), " ", "-")
}

// anchors returns the fragments of a page.
func anchors(page string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		all = append(all, anchor(m[1]))
	}
	return all
}

func TestLinksBetweenPagesLeadSomewhere(t *testing.T) {
	root := filepath.Join("..", "..")
	list := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	pages := strings.Fields(string(out))
	if len(pages) < 10 {
		t.Fatalf("found %d pages only: %v", len(pages), pages)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, page := range pages {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(page), ""), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") {
				continue // another site, or a mail address
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: link to %s: no such file", page, m[1])
				continue
			}
			if fragment != "" && strings.HasSuffix(file, ".md") && !slices.Contains(anchors(read(file)), fragment) {
				t.Errorf("%s: link to %s: %s has no such heading", page, m[1], file)
			}
		}
	}
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	for heading, want := range map[string]string{
		"How a name reaches a sleeping service": "how-a-name-reaches-a-sleeping-service",
		"spec.replicas":                         "specreplicas",
		"A `wake` of [one](x.md), slowly":       "a-wake-of-one-slowly",
	} {
		if got := anchor(heading); got != want {
			t.Errorf("%q: %q, want %q", heading, got, want)
		}
	}
}
