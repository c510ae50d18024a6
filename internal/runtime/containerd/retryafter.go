// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"net/http"
	"time"

	"wangell.loutres.me/internal/base/backoff"
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
		wait, asked := backoff.RetryAfter(resp, time.Now())
		if !asked || wait > longestRetryAfter {
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
