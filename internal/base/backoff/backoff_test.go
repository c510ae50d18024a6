// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"net/http"
	"slices"
	"testing"
	"time"
)

func TestPausesDoubleUpToTheLimitAndStartOverFromZero(t *testing.T) {
	var got []time.Duration
	var pause time.Duration
	for range 5 {
		pause = Next(pause, 10*time.Millisecond, 50*time.Millisecond)
		got = append(got, pause/time.Millisecond)
	}
	if want := []time.Duration{10, 20, 40, 50, 50}; !slices.Equal(got, want) {
		t.Errorf("pauses in ms: %v, want %v", got, want)
	}
	if pause = Next(0, 10*time.Millisecond, 50*time.Millisecond); pause != 10*time.Millisecond {
		t.Errorf("first pause after a reset: %v, want 10ms", pause)
	}
}

func TestPausesOfServersAreSecondsOrDates(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		status int
		text   string
		pause  time.Duration
		asked  bool
	}{
		{429, "7", 7 * time.Second, true},
		{503, "0", 0, true},
		{503, "3600", time.Hour, true},
		{429, "Fri, 02 Jan 2026 03:04:15 GMT", 10 * time.Second, true},
		{429, "Fri, 02 Jan 2026 03:04:00 GMT", 0, true},
		{429, "9223372036854775807", longestPause, true},
		{429, "", 0, false},
		{429, "soon", 0, false},
		{429, "-1", 0, false},
		{500, "7", 0, false},
		{200, "7", 0, false},
	} {
		res := &http.Response{StatusCode: c.status, Header: http.Header{"Retry-After": {c.text}}}
		if pause, asked := RetryAfter(res, now); pause != c.pause || asked != c.asked {
			t.Errorf("%d with Retry-After %q: %v, %t; want %v, %t", c.status, c.text, pause, asked, c.pause, c.asked)
		}
	}
}
