// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// recorded is a line of the file GOTEST_TOTALS: a run of tests, or a target of make that failed (hack/lane.sh).
type recorded struct {
	totals
	// Failures are the failed tests, as "PACKAGE: TEST", without those of which only a subtest failed.
	Failures     []string `json:"failures,omitempty"`
	TargetFailed bool     `json:"target_failed,omitempty"` // the target Label failed; there are no counts
}

// totals are the counts of one run. Subtests count as tests.
type totals struct {
	Label   string `json:"label"`
	Passed  int    `json:"passed"`
	Failed  int    `json:"failed"`
	Skipped int    `json:"skipped"`
	// Allowed is how many of the skipped tests had a reason that CI accepts.
	Allowed int `json:"allowed"`
}

func (t totals) String() string {
	s := fmt.Sprintf("%s: %d passed, %d failed, %d skipped", t.Label, t.Passed, t.Failed, t.Skipped)
	if t.Allowed > 0 {
		s += fmt.Sprintf(" (%d for a reason that CI accepts)", t.Allowed)
	}
	return s
}

// verdict returns why a run does not count as passed, or nil. goFailed is whether go test itself failed, which also
// covers packages that do not build.
func (t totals) verdict(goFailed, ci bool) error {
	switch {
	case t.Failed > 0:
		return fmt.Errorf("%s: failed tests: %d", t.Label, t.Failed)
	case goFailed:
		return fmt.Errorf("%s: go test failed", t.Label)
	case ci && t.Skipped > t.Allowed:
		return fmt.Errorf("%s: skipped tests, which CI does not accept: %d; the reasons are above", t.Label,
			t.Skipped-t.Allowed)
	}
	return nil
}
