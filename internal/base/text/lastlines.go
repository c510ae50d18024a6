// SPDX-License-Identifier: Apache-2.0

package text

import "strings"

// LastLines returns whole lines from the end of a text that have at most n bytes together, or the end of the last line
// if that alone has more.
func LastLines(text string, n int) string {
	if len(text) <= n {
		return text
	}
	text = text[len(text)-n:]
	if i := strings.IndexByte(text, '\n'); i >= 0 && i < len(text)-1 {
		return text[i+1:]
	}
	return strings.ToValidUTF8(text, "")
}
