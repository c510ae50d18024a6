// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// terminal interprets the few control sequences that Screen uses.
func terminal(t *testing.T, text string) []string {
	t.Helper()
	lines := []string{""}
	row := 0
	for text != "" {
		switch {
		case strings.HasPrefix(text, upOne):
			row--
			text = text[len(upOne):]
		case strings.HasPrefix(text, clearBelow):
			lines = append(lines[:row:row], "")
			text = text[len(clearBelow):]
		case text[0] == '\r':
			text = text[1:]
		case text[0] == '\n':
			row++
			if row == len(lines) {
				lines = append(lines, "")
			}
			text = text[1:]
		default:
			end := strings.IndexAny(text, "\x1b\r\n")
			if end < 0 {
				end = len(text)
			}
			lines[row] += text[:end]
			text = text[end:]
		}
		if row < 0 {
			t.Fatal("the cursor leaves the terminal")
		}
	}
	return lines
}

func TestRegionStaysBelowLines(t *testing.T) {
	var out bytes.Buffer
	n := 0
	s := New(&out, func() (int, int) { return 20, 4 }, func(int) []string {
		n++
		lines := []string{fmt.Sprintf("table %d", n), strings.Repeat("x", 30)}
		if n == 3 {
			lines = append(lines, "a", "b", "c")
		}
		return lines
	})
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(s.Refresh())
	_, err := s.Write([]byte("one\ntw"))
	check(err)
	_, err = s.Write([]byte("o\nthree"))
	check(err)
	check(s.Close())
	_, err = s.Write([]byte("after\n"))
	check(err)
	cut := strings.Repeat("x", 18) + "…"
	want := []string{"one", "two", "three", "table 4", cut, "after", ""}
	if got := terminal(t, out.String()); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the terminal shows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestRegionFitsTheTerminal(t *testing.T) {
	var out bytes.Buffer
	s := New(&out, func() (int, int) { return 10, 3 }, func(int) []string { return []string{"1", "2", "3", "4"} })
	if err := s.Refresh(); err != nil {
		t.Fatal(err)
	}
	if out.String() != "1\n2\n" {
		t.Errorf("got %q, want two lines on a terminal of three", &out)
	}
}

func TestBarShowsTheShareDone(t *testing.T) {
	for _, test := range []struct {
		done, total int64
		want        string
	}{
		{0, 0, "[····] 0.0 MB"},
		{1e6, 4e6, "[━···] 1.0 / 4.0 MB"},
		{4e6, 4e6, "[━━━━] 4.0 / 4.0 MB"},
		{5e6, 4e6, "[━━━━] 5.0 / 4.0 MB"},
		{-1, 4e6, "[····] -0.0 / 4.0 MB"},
	} {
		if got := Bar(test.done, test.total, 4); got != test.want {
			t.Errorf("Bar(%d, %d) = %q, want %q", test.done, test.total, got, test.want)
		}
	}
}
