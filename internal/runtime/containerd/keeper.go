// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"sync"
	"time"
)

// Pauses of the keeper: after a wake, while the new process is still busy becoming ready, and after a failure.
const (
	keeperQuiet = 250 * time.Millisecond
	keeperRetry = time.Second
)

// keeper decides when there is time to prepare networks and containers: while no wake is in progress.
type keeper struct {
	wake chan struct{}

	mu       sync.Mutex
	starting int       // wakes in progress
	busyTill time.Time // until then the last of them counts as in progress
}

func (k *keeper) init() { k.wake = make(chan struct{}, 1) }

// kick makes the keeper look for work.
func (k *keeper) kick() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// begin notes that a wake has begun.
func (k *keeper) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starting++
}

// end notes that a wake has ended.
func (k *keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starting--
	k.busyTill = time.Now().Add(keeperQuiet)
	k.kick()
}

// stopped records that a pod was stopped, which means that earlier wakes are over.
func (k *keeper) stopped() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busyTill = time.Time{}
	k.kick()
}

// quiet reports whether there is time now and, if not, the time after which to ask again; 0 means after the next
// kick.
func (k *keeper) quiet(now time.Time) (bool, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.starting > 0 {
		return false, 0
	}
	wait := k.busyTill.Sub(now)
	return wait <= 0, max(wait, 0)
}
