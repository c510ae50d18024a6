// SPDX-License-Identifier: Apache-2.0

package runtimetest

import "testing"

// Run runs all tests of the contract, each with a new Harness.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"a started pod serves and a stopped one is gone", startStop},
		{"phases are reported in order", phases},
		{"stop is idempotent", stopIsIdempotent},
		{"stop kills after the grace period", stopKillsAfterGrace},
		{"a frozen pod is adopted, and ends by its signal", frozenPod},
		{"a missing image is an ErrImage", missingImage},
		{"a process that exits is reported and stays listed", processEnds},
		{"a process that exits at once is reported", endsAtOnce},
		{"a missing program is named", cannotStart},
		{"a cancelled start leaves nothing", cancelledStart},
		{"many pods start at once", manyAtOnce},
		{"a service has several pods", severalPods},
		{"logs are kept and followed", logs},
		{"a reopened runtime adopts its pods", reopen},
		{"prepare and forget can be repeated", forgetAndPrepare},
		{"a start uses the changed spec", changedSpec},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, harness(t)) })
	}
}
