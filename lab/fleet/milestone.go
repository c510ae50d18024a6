// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/lab/report"
)

// milestone is something that every daemon reaches.
type milestone struct {
	want int
	done chan struct{} // closed when all have reached it

	mu    sync.Mutex
	begin time.Time
	took  map[int]time.Duration // by daemon
}

func newMilestone(want int) *milestone {
	return &milestone{want: want, done: make(chan struct{}), begin: time.Now(), took: map[int]time.Duration{}}
}

// reach records that a daemon has reached it; only the first time counts.
func (m *milestone) reach(daemon int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, again := m.took[daemon]; again {
		return
	}
	m.took[daemon] = time.Since(m.begin)
	if len(m.took) == m.want {
		close(m.done)
	}
}

// count returns how many daemons have reached it.
func (m *milestone) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.took)
}

// milliseconds returns the times, sorted.
func (m *milestone) milliseconds() []float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []float64
	for _, d := range m.took {
		all = append(all, milliseconds(d))
	}
	slices.Sort(all)
	return all
}

// milliseconds converts a duration to milliseconds, with a resolution of 1 µs.
func milliseconds(d time.Duration) float64 { return report.Milliseconds(d) }
