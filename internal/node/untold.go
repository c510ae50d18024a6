// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"
	"time"
)

// Pauses between thaws by packets and the reports of them, in which the pods have the processors for themselves.
const (
	tellAfter = 50 * time.Millisecond // for one pod
	tellEach  = 2 * time.Millisecond  // more for each other one: reclaimed ones need one of two processors for as long
	tellMost  = 500 * time.Millisecond
)

// tellAt returns when the thaws of a number of pods are to be reported, of which the first and the last one are given.
func tellAt(first, last time.Time, pods int) time.Time {
	at, most := last.Add(tellAfter+time.Duration(pods-1)*tellEach), first.Add(tellMost)
	if at.After(most) {
		return most
	}
	return at
}

// untold are pods that packets have thawed and that have not been reported.
type untold struct {
	mu    sync.Mutex
	pods  []*still // in the order of their thaw
	first time.Time
	due   time.Time
	timer *time.Timer // nil before the first pod
}

// add adds a pod that was thawed now. u.mu is held.
func (u *untold) add(q *still, now time.Time) {
	if len(u.pods) == 0 {
		u.first = now
	}
	u.pods = append(u.pods, q)
	u.due = tellAt(u.first, now, len(u.pods))
}

// take removes and returns the pods if they are to be reported by now. If not, another one was thawed when the timer
// had just expired, and has set it again.
func (u *untold) take(now time.Time) (pods []*still) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Before(u.due) {
		return nil
	}
	pods, u.pods = u.pods, nil
	return pods
}

// end has the timer call nothing any more.
func (u *untold) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timer != nil {
		u.timer.Stop()
	}
}
