// SPDX-License-Identifier: Apache-2.0

// Package tasks has groups of goroutines that can be ended while others still want to start some. A sync.WaitGroup
// does not allow that: its Add must not run beside its Wait while it counts nothing.
package tasks

import "sync"

// Group is a group of goroutines. The zero value is an empty group. A Group must not be copied after its first use.
type Group struct {
	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// Go calls f in a new goroutine. After Stop it does nothing and returns false.
func (g *Group) Go(f func()) (started bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	g.running.Go(f)
	return true
}

// Stop ends the group: no further goroutine starts, and Stop returns once those that run have ended. It does not tell
// them to end. It may be called more than once.
func (g *Group) Stop() {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	g.running.Wait()
}
