// SPDX-License-Identifier: Apache-2.0

package text

import "testing"

func TestLastLinesAreWhole(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\n", 9, "a\nb\n"},
		{"a\nb\n", 4, "a\nb\n"},
		{"a\nb\n", 3, "b\n"},
		{"a\nlong\n", 4, "ong\n"},
		{"a\nbé", 2, "é"},
		{"aébc", 3, "bc"},
		{"", 0, ""},
	} {
		if got := LastLines(c.text, c.n); got != c.want {
			t.Errorf("LastLines(%q, %d) = %q, want %q", c.text, c.n, got, c.want)
		}
	}
}
