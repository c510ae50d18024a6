// SPDX-License-Identifier: Apache-2.0

// Package backoff computes pauses between attempts: exponentially growing ones, for packages that do not depend on
// Kubernetes, whose wait.Backoff does the same there, and those that HTTP servers ask for.
package backoff

import "time"

// Next returns the pause that follows prev: first if prev is zero, otherwise twice prev, but at most limit. The caller
// keeps the returned value for the next call, and sets it to zero to start over.
func Next(prev, first, limit time.Duration) time.Duration {
	if prev == 0 {
		return first
	}
	return min(2*prev, limit)
}
