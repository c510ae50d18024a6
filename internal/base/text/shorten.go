// SPDX-License-Identifier: Apache-2.0

package text

import "strings"

const mark = "…"

// Shorten returns a text as valid UTF-8 of at most n bytes, n being at least 3. One that is longer is cut between two
// characters, and ends with an ellipsis.
func Shorten(text string, n int) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-len(mark)], "") + mark
}
