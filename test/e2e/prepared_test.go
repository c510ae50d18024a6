// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/testutil/e2e"
)

// A service whose pod is prepared and one without wake in turn. WANGELL_TEST_WAKES=40 measures more of their wakes.
func TestPreparedPodsServeWakes(t *testing.T) {
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("WANGELL_TEST_WAKES")); err == nil {
		rounds = n
	}
	l := newLab(t, 1)
	l.start(t, service{name: "cold"}, service{name: "ready", more: "sleep: {prepared: 1}"})
	took := map[string][]time.Duration{}
	for range rounds {
		for _, name := range []string{"cold", "ready"} {
			time.Sleep(500 * time.Millisecond) // what is prepared in the background is, and starts are not in each other's way
			e2e.MustAsk(t, l.Client(), l.address(t, name))
			l.until(t, name, "warm", func(s controller.Status) bool { return s.Serving == 1 })
			wakes := l.wakes(t, name)
			at, ok := wakes[len(wakes)-1].At(lifecycle.PhaseListening)
			if !ok {
				t.Fatalf("%s: %+v", name, wakes)
			}
			took[name] = append(took[name], at)
			l.must(t, "sleep", name)
			l.until(t, name, "asleep", func(s controller.Status) bool { return len(s.Pods) == 0 })
		}
	}
	for name, all := range took {
		slices.Sort(all)
		t.Logf("%s: listens after %v at the median, %v at most, of %d wakes", name, all[len(all)/2], all[len(all)-1], rounds)
	}
}
