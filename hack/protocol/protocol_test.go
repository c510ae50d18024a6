// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const wire = "../../internal/wire"

func TestPageOfMessagesIsUpToDate(t *testing.T) {
	s, err := load(wire)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/protocol/messages.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != string(s.page()) {
		t.Error("docs/protocol/messages.md is stale: run 'go generate ./hack/protocol' and commit it")
	}
}

// The rows of a message without lists and texts add up to the length of its encoding in the test vectors.
func TestSizesAddUpToTheEncodings(t *testing.T) {
	s, err := load(wire)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(wire, "testdata", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Messages []struct {
			Name    string
			Type    int
			Encoded string
		}
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	structs, checked := s.messages(), 0
	for _, k := range s.kinds {
		size, fixed := 1, true
		for _, r := range s.rowsOf(structs[k.name]) {
			n, err := strconv.Atoi(r.size)
			if err != nil || strings.Contains(r.field, "[") || strings.Contains(r.meaning, "present if") {
				fixed = false
			}
			size += n
		}
		if !fixed {
			continue
		}
		for _, v := range vectors.Messages {
			if strconv.Itoa(v.Type) != k.value {
				continue
			}
			checked++
			if encoded, err := hex.DecodeString(v.Encoded); err != nil || len(encoded) != size {
				t.Errorf("%s: %d bytes by its rows, %d in the vector %s (%v)", k.name, size, len(encoded), v.Name, err)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d vectors were compared", checked)
	}
}

func TestEveryFieldAndValueHasAMeaning(t *testing.T) {
	page, err := os.ReadFile("../../docs/protocol/messages.md")
	if err != nil {
		t.Fatal(err)
	}
	section, rows := "", 0
	for line := range strings.Lines(string(page)) {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(name)
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 5 || strings.HasPrefix(line, "|---") {
			continue
		}
		rows++
		if strings.TrimSpace(cells[len(cells)-2]) == "" {
			t.Errorf("docs/protocol/messages.md: %s: %s has no meaning: give it a comment in internal/wire",
				section, strings.TrimSpace(cells[1]))
		}
	}
	if rows < 200 {
		t.Errorf("found %d rows only", rows)
	}
}

func TestEveryMessageHasRows(t *testing.T) {
	s, err := load(wire)
	if err != nil {
		t.Fatal(err)
	}
	structs, names := s.messages(), s.names()
	for _, k := range s.kinds {
		if names[k.name] == "" || len(s.rowsOf(structs[k.name])) == 0 {
			t.Errorf("%s: name %q, struct %q, no rows", k.name, names[k.name], structs[k.name])
		}
	}
}
