// SPDX-License-Identifier: Apache-2.0

package manifest

import "strings"

// nearest returns the name closest to a misspelt word. It returns false if none is close enough to be what was meant.
func nearest(word string, names []string) (string, bool) {
	best, bestDistance := "", max(1, len(word)/3)+1
	for _, n := range names {
		if abs(len(n)-len(word)) >= bestDistance {
			continue
		}
		if d := distance(strings.ToLower(word), strings.ToLower(n)); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	return best, best != ""
}

func abs(n int) int { return max(n, -n) }

// distance returns the edit distance between a and b: insertions, deletions, replacements and swaps of neighbouring
// letters (optimal string alignment). It takes O(len(a)*len(b)) time; callers bound the lengths.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replace := last[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, replace)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
