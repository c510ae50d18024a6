// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/cri"
	"wangell.loutres.me/internal/placement"
)

func (p *prefetcher) judgeUsers(name string) {
	for _, s := range p.users[name] {
		p.judge(s)
	}
}

// judge reports the state of a service's images to users and the runtime, if it has changed.
func (p *prefetcher) judge(s *service) {
	if p.table.services[s.key] != s || s.machine.Deleted() {
		return
	}
	st, planned := unplanned(&s.spec.Spec)
	var have []string
	resolved := false
	if planned {
		resolved = p.learn(s)
		st, have = summarize(s.imageList(), p.plan.Nodes[string(s.key)], p.plan.Full[string(s.key)], p.state)
	}
	if s.spec.Spec.PullsLazily() {
		st = st.orFull(s.lazy, p.lazy)
	}
	if len(have) == 0 {
		have = p.others(s)
	}
	if !slices.Equal(have, s.haveImages) {
		s.haveImages = have
		p.cluster.PreferNodes(s.key, have)
	}
	if st == s.images {
		if resolved || s.lazy != s.reported.lazy {
			p.changed.check(s)
		}
		return
	}
	s.images = st
	switch {
	case !st.failed():
		if st.Ready != imagesNotReady {
			s.imageFailure = ""
		}
	case s.imageFailure != st.Reason: // once, and not for each node and attempt
		s.imageFailure = st.Reason
		p.events.emit(Event{
			Time: time.Now(), Kind: EventImages, Service: s.key, Severity: SeverityWarning, Text: st.Message,
		})
	}
	p.changed.check(s)
}

// others returns the nodes of a service whose images no node has completely, without the nodes that cannot get all of
// an image.
func (p *prefetcher) others(s *service) []string {
	nodes := p.plan.Nodes[string(s.key)]
	rest := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		return slices.ContainsFunc(s.imageList(), func(i placement.Image) bool {
			return p.report(node, i.Name).Reason == cri.ReasonUnreadable
		})
	})
	if len(rest) == len(nodes) {
		return nil
	}
	return rest
}
