// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

// revisionsWait is how long a service waits for missing revisions. They may be created together with it, in any
// order.
const revisionsWait = 10 * time.Second

// lead decides where the requests of a service with traffic go while some of its revisions may not exist.
type lead struct {
	wanted  wire.Traffic  // as the table has it
	since   monotime.Time // when it came
	decided bool          // all its revisions have existed, or were waited for long enough
	last    wire.Traffic  // the traffic last returned by follow; empty if none
	missing []string      // missing revisions
	told    []string      // the missing revisions that news last returned
}

// adopt records that an earlier daemon has already directed requests by the traffic that comes next: nothing is
// waited for.
func (l *lead) adopt() { l.decided = true }

// follow returns where requests go. A deleted revision leaves its share to the others. While one does not exist yet,
// requests go where they went before. If they may go nowhere, traffic is empty, and clients should wait. again is the
// pause after which follow may return something else although no service comes or goes; 0 for never.
func (l *lead) follow(wanted wire.Traffic, there map[string]bool, now monotime.Time) (t envoy.Traffic,
	again time.Duration) {
	if wanted != l.wanted {
		l.decided = l.decided && l.wanted.Empty()
		l.wanted, l.since = wanted, now
	}
	some := trafficOf(wanted)
	l.missing = nil
	for _, r := range some.Revisions {
		if !there[r.Service] {
			l.missing = append(l.missing, r.Service)
		}
	}
	some = among(some, there)
	if left := revisionsWait - now.Sub(l.since); len(l.missing) == 0 || left <= 0 {
		l.decided = true
	} else if !l.decided {
		again = left
	}
	if l.decided && !some.Empty() {
		l.last = wanted
		return some, 0
	}
	return among(trafficOf(l.last), there), again
}

// news returns the missing revisions, unless it returned the same ones last time.
func (l *lead) news() []string {
	if slices.Equal(l.told, l.missing) {
		return nil
	}
	l.told = l.missing
	return l.missing
}

// among returns traffic without its missing revisions. It is empty if no request could go to the rest.
func among(t envoy.Traffic, there map[string]bool) envoy.Traffic {
	t.Revisions = slices.DeleteFunc(t.Revisions, func(r envoy.Revision) bool { return !there[r.Service] })
	if !slices.ContainsFunc(t.Revisions, func(r envoy.Revision) bool { return r.Percent > 0 }) {
		return envoy.Traffic{}
	}
	return t
}

// trafficOf returns traffic as Envoy gets it.
func trafficOf(t wire.Traffic) (out envoy.Traffic) {
	sticky, revisions := t.Revisions()
	switch sticky.Kind {
	case wire.StickyHeader:
		out.Sticky.Header = sticky.Name
	case wire.StickyCookie:
		out.Sticky = envoy.Sticky{Cookie: sticky.Name, MaxAge: time.Duration(sticky.MaxAgeSeconds) * time.Second}
	}
	for _, r := range revisions {
		out.Revisions = append(out.Revisions, envoy.Revision{Service: r.Service, Percent: uint32(r.Percent), Tag: r.Tag})
	}
	return out
}
