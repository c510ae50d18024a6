// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
)

// splits reports whether the service's requests go to other services. Then it never has a pod: daemons ask for none,
// and it is not used itself.
func (w *wanted) splits() bool { return w.spec.Spec.SplitsTraffic() }

// stateOf is the state of a service as users see it. A service whose requests go to others is always ready; its
// machine only has the state of pods from before the split.
func (s *service) stateOf() lifecycle.State {
	if s.splits() {
		return lifecycle.Warm
	}
	return s.machine.State()
}

// asleep reports whether the service has no pod because nobody uses it.
func (s *service) asleep() bool { return s.stateOf() == lifecycle.Cold }

// hasPods returns an error if a service has no pods of its own to wake or put to sleep.
func (s *service) hasPods() error {
	if !s.splits() {
		return nil
	}
	return fmt.Errorf("service %s has no pods, as its traffic goes to others: name one of its revisions, %s",
		s.key, s.spec.Spec.Traffic[0].Revision)
}

// hasOldRequests reports whether the service may still have requests from when another one routed some to it.
func (s *service) hasOldRequests(now monotime.Time) bool {
	return s.routed != 0 && now.Sub(s.routed) < time.Duration(s.drainMillis())*time.Millisecond
}
