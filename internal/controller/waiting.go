// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"

	"wangell.loutres.me/internal/decide/lifecycle"
)

// awaitPods returns a sleeper that waits for the end of the present pods; nil if there are none.
func (s *service) awaitPods() *sleeper {
	if len(s.pods) == 0 {
		return nil
	}
	w := &sleeper{refs: map[lifecycle.Ref]bool{}, done: make(chan struct{})}
	for _, p := range s.pods {
		w.refs[p.ref] = true
	}
	s.sleepers = append(s.sleepers, w)
	return w
}

func (s *service) removeSleeper(w *sleeper) {
	s.sleepers = slices.DeleteFunc(s.sleepers, func(o *sleeper) bool { return o == w })
}

// checkWaiters releases the waiters whose condition holds.
func (s *service) checkWaiters() {
	s.waiters = slices.DeleteFunc(s.waiters, func(w *waiter) bool {
		ready, err := w.ready(s)
		if s.machine.Deleted() {
			ready, err = false, fmt.Errorf("service %s: removed meanwhile", s.key)
		}
		if ready || err != nil {
			w.done <- err
			return true
		}
		return false
	})
}
