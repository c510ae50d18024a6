// SPDX-License-Identifier: Apache-2.0

// Package rollout decides how the traffic of a service moves among its revisions. Its functions are pure: the next
// step follows from spec.traffic alone, so that no state is kept between two commands.
package rollout

import (
	"fmt"
	"slices"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
)

// Candidate returns the index of the revision that is being rolled out: the one with a name, or without a name the only
// one with a tag, or else the last one.
func Candidate(traffic []v1alpha1.Revision, name string) (int, error) {
	if len(traffic) < 2 {
		return 0, fmt.Errorf("its traffic has %d revisions: a rollout needs two in spec.traffic", len(traffic))
	}
	if name != "" {
		i := slices.IndexFunc(traffic, func(r v1alpha1.Revision) bool { return r.Revision == name })
		if i < 0 {
			return 0, fmt.Errorf("its traffic has no revision %q: name one of %s", name, names(traffic))
		}
		return i, nil
	}
	tagged := -1
	for i, r := range traffic {
		switch {
		case r.Tag == "":
		case tagged >= 0:
			return 0, fmt.Errorf("several of its revisions have tags: say with --revision which of %s is meant", names(traffic))
		default:
			tagged = i
		}
	}
	if tagged < 0 {
		tagged = len(traffic) - 1
	}
	return tagged, nil
}

// Before returns the index of the revision that a candidate replaces: the one listed before it, or for the first one
// the next.
func Before(candidate int) int {
	if candidate == 0 {
		return 1
	}
	return candidate - 1
}

// Promote returns the traffic with the candidate at a percentage, 0 to 100. The others share the rest in their
// present proportions; if they have nothing, the one before the candidate gets it.
func Promote(traffic []v1alpha1.Revision, candidate, percent int) []v1alpha1.Revision {
	next := slices.Clone(traffic)
	next[candidate].Percent = int32(percent)
	others, rest := 0, 100-percent
	for i, r := range traffic {
		if i != candidate {
			others += int(r.Percent)
		}
	}
	if others == 0 {
		next[Before(candidate)].Percent = int32(rest)
		return next
	}
	given := 0
	for i, r := range traffic {
		if i != candidate {
			next[i].Percent = int32(int(r.Percent) * rest / others)
			given += int(next[i].Percent)
		}
	}
	// The remainder of rounding goes to the revisions that lost most by it; of equal ones, to the first.
	for ; given < rest; given++ {
		most, at := -1, 0
		for i, r := range traffic {
			if lost := int(r.Percent)*rest - int(next[i].Percent)*others; i != candidate && lost > most {
				most, at = lost, i
			}
		}
		next[at].Percent++
	}
	return next
}

// Abort returns the traffic in which the revision before the candidate has everything. Tags stay.
func Abort(traffic []v1alpha1.Revision, candidate int) []v1alpha1.Revision {
	next := slices.Clone(traffic)
	for i := range next {
		next[i].Percent = 0
	}
	next[Before(candidate)].Percent = 100
	return next
}

// Describe returns the percentages in words: "shop-v1 90 %, shop-v2 10 %".
func Describe(traffic []v1alpha1.Revision) string {
	var parts []string
	for _, r := range traffic {
		parts = append(parts, fmt.Sprintf("%s %d %%", r.Revision, r.Percent))
	}
	return strings.Join(parts, ", ")
}

func names(traffic []v1alpha1.Revision) string {
	var all []string
	for _, r := range traffic {
		all = append(all, r.Revision)
	}
	return strings.Join(all, ", ")
}
