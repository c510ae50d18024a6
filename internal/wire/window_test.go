// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math/rand/v2"
	"testing"
)

func TestReplayWindowAgreesWithASetOfCounters(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, spread := range []uint64{4, 100, replayBits - 1, replayBits + 500, 5 * replayBits} {
		var w replayWindow
		seen := map[uint64]bool{}
		var top uint64
		for range 20_000 {
			c := top - min(top, rnd.Uint64N(spread+1)) + rnd.Uint64N(spread+1)
			want := !seen[c] && (c >= top || top-c <= replayBits)
			if got := w.fresh(c); got != want {
				t.Fatalf("spread %d: counter %d, top %d: fresh is %v, want %v", spread, c, top, got, want)
			}
			if want {
				w.commit(c)
				seen[c] = true
				top = max(top, c+1)
			}
		}
	}
	var w replayWindow
	w.commit(maxCounter)
	if w.fresh(maxCounter) || !w.fresh(maxCounter-1) || w.fresh(0) {
		t.Error("the highest counter is handled wrongly")
	}
}
