// SPDX-License-Identifier: Apache-2.0

package backoff

import (
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
