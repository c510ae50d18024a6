// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// line is one line of output.
type line struct {
	text string
	at   time.Duration // since the first line
}

// compress moves lines forward so that the first one is at zero and no pause is longer than most.
func compress(lines []line, most time.Duration) []line {
	out := make([]line, len(lines))
	var at time.Duration
	for i, l := range lines {
		if i > 0 {
			at += min(l.at-lines[i-1].at, most)
		}
		out[i] = line{text: l.text, at: at}
	}
	return out
}
