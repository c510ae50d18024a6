// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"math"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

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
