// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"net/http"
	"strconv"
	"time"
)

const (
	// patientTries is how often a request is repeated after responses with Retry-After, and longestRetryAfter the
	// longest such time: a registry that asks for hours is reported instead.
	patientTries      = 5
	longestRetryAfter = time.Minute
)

// patient is a transport that repeats requests after the time that the registry asks for (429 or 503 with
// Retry-After). containerd's resolver repeats them at once, which also counts against a registry's limit of pulls.
type patient struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p patient) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 1; ; try++ {
		resp, err := p.next.RoundTrip(req)
		if err != nil || try == patientTries || req.Body != nil && req.Body != http.NoBody {
			return resp, err
		}
		wait, asked := retryAfter(resp, time.Now())
		if !asked {
			return resp, nil
		}
		_ = resp.Body.Close()
		select {
		case <-time.After(wait):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}

// retryAfter returns the pause that a response asks for; false if it asks for none, or for too long a pause.
func retryAfter(resp *http.Response, now time.Time) (wait time.Duration, asked bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0, false
	}
	text := resp.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		wait = max(at.Sub(now), 0)
	} else {
		return 0, false
	}
	return wait, wait >= 0 && wait <= longestRetryAfter
}
