// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"
)

func TestRecordReturnsEachLineAndTheExitStatus(t *testing.T) {
	lines, err := record([]string{"sh", "-c", "echo a; echo b >&2; exit 3"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v, want exit status 3", err)
	}
	if len(lines) != 2 || lines[0].text != "a" || lines[1].text != "b" {
		t.Errorf("lines %v", lines)
	}
}

func TestCompressCutsLongPauses(t *testing.T) {
	got := compress([]line{{"a", 2 * time.Second}, {"b", 3 * time.Second}, {"c", time.Minute}}, 5*time.Second)
	for i, want := range []time.Duration{0, time.Second, 6 * time.Second} {
		if got[i].at != want {
			t.Errorf("line %d at %s, want %s", i, got[i].at, want)
		}
	}
}

func TestSVGIsWellFormedAndEscapesText(t *testing.T) {
	svg := screen{rows: 2, cols: 20}.svg([]line{
		{"$ make demo", 0}, {"", 1}, {"<Heading> & more", 2}, {strings.Repeat("x", 30), 3},
	})
	var texts []string
	d := xml.NewDecoder(strings.NewReader(string(svg)))
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if data, ok := token.(xml.CharData); ok {
			texts = append(texts, string(data))
		}
	}
	all := strings.Join(texts, "")
	for _, want := range []string{"<Heading> & more", strings.Repeat("x", 19) + "…"} {
		if !strings.Contains(all, want) {
			t.Errorf("no text %q", want)
		}
	}
	if !strings.Contains(string(svg), `class="l h"`) || !strings.Contains(string(svg), `class="l c"`) {
		t.Error("heading and command are not marked")
	}
}
