// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"sync"
	"sync/atomic"
	"testing"
)

// Goroutines that want to start others beside Stop are no data race, and none runs once Stop has returned.
func TestNothingStartsAfterStop(t *testing.T) {
	for range 200 {
		var g Group
		var running atomic.Int32
		var others sync.WaitGroup
		for range 4 {
			others.Go(func() {
				for g.Go(func() { running.Add(1); running.Add(-1) }) {
				}
			})
		}
		g.Stop()
		if n := running.Load(); n != 0 {
			t.Fatalf("%d run after Stop", n)
		}
		others.Wait()
		if g.Go(func() { t.Error("runs") }) {
			t.Error("started after Stop")
		}
		g.Stop()
	}
}
