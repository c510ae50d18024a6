// SPDX-License-Identifier: Apache-2.0

package text

import (
	"testing"
	"unicode/utf8"
)

func TestTextsAreCutBetweenCharacters(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "12345678": "12345678", "123456789": "12345…", "1234é6789": "1234…", "12345é7": "12345é7", "a\xffb": "a�b",
	} {
		if got := Shorten(text, 8); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
