// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

// openFor is how long a number of open requests is valid. Envoy does not report pods without requests.
const openFor = 3 * envoy.ReportInterval

// answers are the requests that came through this node's Envoy to a pod, or to none.
type answers struct {
	total wire.PodAnswers          // since the daemon's start
	open  map[netip.Addr]openCount // by the address of the Envoy that has reported it: total.Open is the sum
	due   int                      // how often they must still be sent to the controller
}

// openCount is a number of open requests.
type openCount struct {
	n  uint32
	at monotime.Time // when it was reported
}

// sendTwice is how often a change is sent: the first message may be lost.
const sendTwice = 2

// add adds what Envoy reports.
func (a *answers) add(r envoy.Requests, now monotime.Time) {
	before := a.total
	a.total.Started += r.Started
	for class, n := range r.Answered {
		a.total.Answered[class] += n
	}
	if r.Open != nil {
		if a.open == nil {
			a.open = map[netip.Addr]openCount{}
		}
		a.open[r.From] = openCount{n: *r.Open, at: now}
	}
	a.sumOpen(now)
	if a.total != before {
		a.due = sendTwice
	}
}

// sumOpen adds up the open requests that were reported lately.
func (a *answers) sumOpen(now monotime.Time) {
	a.total.Open = 0
	for from, o := range a.open {
		if now.Sub(o.at) > openFor {
			delete(a.open, from)
		} else {
			a.total.Open += o.n
		}
	}
}

// take returns the report to send now; ok is false if there is none.
func (a *answers) take(service netip.AddrPort, pod uint64, now monotime.Time) (total wire.PodAnswers, ok bool) {
	before := a.total.Open
	if a.sumOpen(now); a.total.Open != before {
		a.due = sendTwice
	}
	if a.due == 0 {
		return total, false
	}
	a.due--
	total = a.total
	total.Service, total.PodID = service, pod
	return total, true
}

// sendAgain schedules them for a new controller, if there are any.
func (a *answers) sendAgain() {
	if a.total != (wire.PodAnswers{}) {
		a.due = sendTwice
	}
}
