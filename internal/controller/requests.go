// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"math"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

// answers counts the requests of a pod, or those of a service without a pod, over all nodes.
type answers struct {
	nodes map[string]nodeAnswers // the last report of each node
	sum   wire.PodAnswers        // counted by nodes since their first report; Open is not used
}

// nodeAnswers is the report of a node.
type nodeAnswers struct {
	at monotime.Time
	wire.PodAnswers
	rate float64 // requests started per second before at
}

const (
	// answersEvery is the interval at which nodes report, if something has changed.
	answersEvery = time.Second
	// answersAge is how long a rate holds.
	answersAge = 3 * answersEvery
)

// add records a node's report, which is a total, and returns the number of new requests. Failed ones got no answer,
// or a server error. Reports may arrive out of order.
func (a *answers) add(node string, at monotime.Time, next wire.PodAnswers) (started, answered, failed uint64) {
	last := a.nodes[node]
	if at < last.at {
		return 0, 0, 0
	}
	if a.nodes == nil {
		a.nodes = map[string]nodeAnswers{}
	}
	started = grown(last.Started, next.Started)
	span := at.Sub(last.at)
	if span > answersAge { // nothing had changed until a second ago
		span = answersEvery
	}
	rate := last.rate
	if span > 0 { // not another part of the same report
		rate = float64(started) / span.Seconds()
	}
	a.nodes[node] = nodeAnswers{at, next, rate}
	a.sum.Started += started
	for class, n := range next.Answered {
		more := grown(last.Answered[class], n)
		a.sum.Answered[class] += more
		answered += more
		if class == 0 || class == 5 {
			failed += more
		}
	}
	return started, answered, failed
}

// grown returns the growth of a counter. One that has fallen started from zero.
func grown(before, after uint64) uint64 {
	if after < before {
		return after
	}
	return after - before
}

// open is the number of requests that are not answered yet.
func (a *answers) open() (n uint32) {
	for _, r := range a.nodes {
		n += r.Open
	}
	return n
}

// rate is the number of requests started per second.
func (a *answers) rate(now monotime.Time) (sum float64) {
	for _, r := range a.nodes {
		if now.Sub(r.at) < answersAge {
			sum += r.rate
		}
	}
	return sum
}

// forgetOpen forgets the open requests through a node that has left.
func (a *answers) forgetOpen(node string) {
	if r, ok := a.nodes[node]; ok {
		r.Open = 0
		a.nodes[node] = r
	}
}

// podAnswers are the requests of a pod; without a name, those that have none.
type podAnswers struct {
	pod   string
	open  uint32
	ended [wire.Classes]uint64
}

// forgetOpen forgets the open requests of a service through a node that has left.
func (s *service) forgetOpen(node string) {
	s.answers.forgetOpen(node)
	for _, p := range s.pods {
		p.answers.forgetOpen(node)
	}
}

// answersByPod returns the requests of the service if they are balanced.
func (s *service) answersByPod() (list []podAnswers) {
	if !s.spec.Spec.BalancesRequests() || s.splits() {
		return nil
	}
	list = append(list, podAnswers{open: s.answers.open(), ended: s.answers.sum.Answered})
	for _, p := range s.pods {
		if name := cmp.Or(p.rt.Name, p.rt.ID); name != "" {
			list = append(list, podAnswers{pod: name, open: p.answers.open(), ended: p.answers.sum.Answered})
		}
	}
	return list
}

// requestLoad returns the requests per second, and the number not answered yet. Both are NaN if unknown: pods have
// connections, but no request is reported, as without Envoy.
func (s *service) requestLoad(connected bool, now monotime.Time) (perSecond, open float64) {
	open = float64(s.answers.open())
	for _, p := range s.pods {
		perSecond += p.answers.rate(now)
		open += float64(p.answers.open())
	}
	if connected && perSecond == 0 && open == 0 {
		return math.NaN(), math.NaN()
	}
	return perSecond, open
}
