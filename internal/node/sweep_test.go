// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"
)

func TestSweepsOfALargeTableTakeATenthOfTheTime(t *testing.T) {
	for _, c := range []struct{ took, pause time.Duration }{
		{0, 5 * time.Second},
		{300 * time.Millisecond, 5 * time.Second},
		{2500 * time.Millisecond, 22500 * time.Millisecond},
	} {
		if got := sweepPause(c.took); got != c.pause {
			t.Errorf("pause after a sweep of %v: %v, want %v", c.took, got, c.pause)
		}
	}
}
