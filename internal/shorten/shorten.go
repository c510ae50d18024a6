// SPDX-License-Identifier: Apache-2.0

// Package shorten cuts texts to the length that a message or an event may have. Its functions are pure.
package shorten

import "strings"

const mark = "…"

// Text returns a text as valid UTF-8 of at most n bytes, n being at least 3. One that is longer is cut between two
// characters, and ends with an ellipsis.
func Text(text string, n int) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-len(mark)], "") + mark
}
