// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"math"
	"net/http"
	"strconv"
	"time"
)

// longestPause is the longest pause that RetryAfter returns: a time.Duration cannot hold many more whole seconds.
const longestPause = math.MaxInt64 / time.Second * time.Second

// RetryAfter returns the pause, from now, that an HTTP server asks for with the status 429 or 503 and the header
// Retry-After, in whole seconds or until a date (RFC 9110, section 10.2.3). It is 0 for a date in the past. asked is
// false if the server asks for none. The server decides on the length, up to centuries: the caller has to bound it.
func RetryAfter(res *http.Response, now time.Time) (pause time.Duration, asked bool) {
	if res.StatusCode != http.StatusTooManyRequests && res.StatusCode != http.StatusServiceUnavailable {
		return 0, false
	}
	text := res.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 63); err == nil {
		return time.Duration(min(seconds, uint64(longestPause/time.Second))) * time.Second, true
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0), true
	}
	return 0, false
}
