// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/wire"
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

// trafficOf returns the revisions that get the requests of a service, for the daemons.
func trafficOf(s *v1alpha1.WangellService) wire.Traffic {
	if !s.Spec.SplitsTraffic() {
		return wire.Traffic{}
	}
	var sticky wire.Sticky
	switch by := s.Spec.Sticky; {
	case by == nil:
	case by.Header != "":
		sticky = wire.Sticky{Kind: wire.StickyHeader, Name: by.Header}
	default:
		sticky = wire.Sticky{Kind: wire.StickyCookie, Name: by.Cookie, MaxAgeSeconds: uint32(by.MaxAge)}
	}
	var revisions []wire.Revision
	for _, r := range s.Spec.Traffic {
		revisions = append(revisions, wire.Revision{
			Service: s.Namespace + "/" + r.Revision, Percent: uint8(r.Percent), Tag: r.Tag,
		})
	}
	return wire.NewTraffic(sticky, revisions)
}
