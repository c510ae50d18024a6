// SPDX-License-Identifier: Apache-2.0

// Package e2e has what the end-to-end tests on one machine (test/e2e) and on Kubernetes (test/kube) share: clients of
// the tests' own server, load that must not lose a request, load tools, and waiting.
package e2e

import (
	"testing"
	"time"
)

// Patience is the time limit of a step that normally takes some seconds or less. It is this long because the machine
// may be busy; no test passes or fails by it otherwise.
const Patience = 3 * time.Minute

// Eventually pauses between two looks for pollEvery, or twice as long as a look takes, but not for longer than
// pollSeldom: one that starts a program, such as kubectl, would keep a core busy all the time.
const pollEvery, pollSeldom = 50 * time.Millisecond, 500 * time.Millisecond

// Eventually waits until the condition holds, and fails the test with the last observation if that takes longer than
// Patience.
func Eventually(t testing.TB, what string, holds func() (ok bool, saw string)) {
	t.Helper()
	for deadline := time.Now().Add(Patience); ; {
		begin := time.Now()
		ok, saw := holds()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s; last seen: %s", what, Patience, saw)
		}
		time.Sleep(min(max(pollEvery, 2*time.Since(begin)), pollSeldom))
	}
}

// Must returns a function that returns v, or ends the test if err is not nil: Must(f())(t).
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
