// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

func TestGracePeriodBeginsWithTheFirstSignal(t *testing.T) {
	const now = monotime.Time(1e12)
	g := gracePeriod{length: 10 * time.Second}
	if left := g.left(now); left != 10*time.Second {
		t.Errorf("before the signal: %v", left)
	}
	begin := now.Add(time.Minute) // all that time, others were stopped
	if left := g.begin(begin); left != 10*time.Second {
		t.Errorf("at the signal: %v", left)
	}
	if left := g.begin(begin.Add(4 * time.Second)); left != 6*time.Second {
		t.Errorf("at that of another container: %v", left)
	}
	if left := g.left(begin.Add(time.Minute)); left != 0 {
		t.Errorf("afterwards: %v", left)
	}
	if left := (&gracePeriod{}).begin(now); left != 0 {
		t.Errorf("without one: %v", left)
	}
}
