// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"sync"
	"time"
)

// untold are pods that a packet has thawed and that have not been reported.
type untold struct {
	mu    sync.Mutex
	pods  []toTell    // in the order of their thaw
	timer *time.Timer // nil before the first pod
}

type toTell struct {
	pod *still
	at  time.Time
}

// due removes and returns the pods that are due, and sets the timer for the others.
func (u *untold) due(now time.Time) (due []toTell) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := 0
	for n < len(u.pods) && !u.pods[n].at.After(now) {
		n++
	}
	due, u.pods = u.pods[:n], slices.Clone(u.pods[n:])
	if len(u.pods) > 0 {
		u.timer.Reset(u.pods[0].at.Sub(now))
	}
	return due
}

// end has the timer call nothing any more.
func (u *untold) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timer != nil {
		u.timer.Stop()
	}
}
