// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	// longestLimit is the longest pause that a registry is granted at once.
	longestLimit = time.Minute
	// limitedFor is how long after its last byte a registry may go on asking for pauses before reads fail.
	limitedFor = 5 * time.Minute
)

// limitedError is the answer of a registry that asks for a pause.
type limitedError struct {
	status string
	after  time.Duration
}

// Error implements error.
func (e *limitedError) Error() string {
	return fmt.Sprintf("it answers %s, and asks for a pause of %v", e.status, e.after)
}

// retryAfter returns the pause that an answer asks for, in seconds or until a date, at most longestLimit. 0: none.
func retryAfter(res *http.Response, now time.Time) time.Duration {
	if res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusServiceUnavailable {
		return 0
	}
	text := res.Header.Get("Retry-After")
	after := time.Duration(0)
	if s, err := strconv.ParseUint(text, 10, 31); err == nil {
		after = time.Duration(s) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		after = at.Sub(now)
	}
	return min(max(after, 0), longestLimit)
}
