// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const decisions = "../../docs/adr"

var (
	status  = regexp.MustCompile(`(?m)^Status: (.*)$`)
	changes = regexp.MustCompile(`\]\((\d{4}-[^)]*\.md)\)`)
)

// records returns the status of each decision by the name of its file.
func records(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(decisions, "0*.md"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d records, %v", len(files), err)
	}
	all := map[string]string{}
	for _, f := range files {
		m := status.FindStringSubmatch(read(t, f))
		if m == nil {
			t.Errorf("%s has no line that begins with Status:", f)
			continue
		}
		all[filepath.Base(f)] = m[1]
	}
	return all
}

// A decision that another one changes says so, in its own record and in the index.
func TestDecisionsNameWhatChangesThem(t *testing.T) {
	all := records(t)
	for name, s := range all {
		for _, m := range changes.FindAllStringSubmatch(s, -1) {
			other, ok := all[m[1]]
			if !ok {
				t.Errorf("%s: its status names %s, which does not exist", name, m[1])
				continue
			}
			if !strings.Contains(other, "("+name+")") {
				t.Errorf("%s: its status names %s, whose status does not name it: %s", name, m[1], other)
			}
		}
		if (strings.Contains(s, "superseded by") || strings.Contains(s, "amended by")) && !changes.MatchString(s) {
			t.Errorf("%s: its status does not link the record that changes it: %s", name, s)
		}
	}
}

func TestEveryDecisionIsInTheIndex(t *testing.T) {
	rows := map[string]string{}
	for line := range strings.Lines(read(t, filepath.Join(decisions, "README.md"))) {
		if m := changes.FindStringSubmatch(line); m != nil && strings.HasPrefix(line, "| [0") {
			rows[m[1]] = line
		}
	}
	all := records(t)
	if len(rows) != len(all) {
		t.Errorf("the index has %d records, the folder %d", len(rows), len(all))
	}
	for name, s := range all {
		row, ok := rows[name]
		if !ok {
			t.Errorf("docs/adr/README.md does not have %s", name)
			continue
		}
		for _, word := range []string{"superseded", "amended"} {
			if strings.Contains(s, word+" by") != strings.Contains(row, word+" by") {
				t.Errorf("docs/adr/README.md: the row of %s and its status disagree about %q: %s", name, word, s)
			}
		}
		for _, m := range changes.FindAllStringSubmatch(s, -1) {
			if !strings.Contains(row, m[1]) {
				t.Errorf("docs/adr/README.md: the row of %s does not link %s", name, m[1])
			}
		}
	}
}
