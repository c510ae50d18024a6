// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"cmp"
	"slices"
)

// Busy returns the seconds of a pull in which at least one layer was being downloaded, and those in which at least
// one was being unpacked: decompressed, written and its snapshot committed. They may overlap, so that their sum
// exceeds the pull. No second pass is needed. It fails as Analyse does.
func Busy(r Recording) (fetch, unpack float64, err error) {
	layers, err := layerTimes(r)
	if err != nil {
		return 0, 0, err
	}
	var fetching, unpacking []Span
	for _, t := range layers {
		fetching = append(fetching, Span{Fetch, t.fetching, t.stored})
		unpacking = append(unpacking, Span{Apply, t.applying, t.applied}, Span{Fsync, t.committing, t.committed})
	}
	return covered(fetching), covered(unpacking), nil
}

// covered returns the seconds that at least one of the spans covers.
func covered(spans []Span) (seconds float64) {
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.Begin, b.Begin) })
	end := 0.0
	for _, s := range spans {
		seconds += max(s.End-max(s.Begin, end), 0)
		end = max(end, s.End)
	}
	return seconds
}
