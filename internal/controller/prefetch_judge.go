// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
)

// imageJudge tells users and the runtime about the images of services. It belongs to the loop.
type imageJudge struct {
	*imagePlan
	table   *table
	events  *hub
	changed *changedSet
	cluster runtime.Cluster
	lazy    bool // Config.Lazy
}

// judge reports the state of a service's images to users and the runtime, if it has changed. resolved is set if names
// of images were resolved anew.
func (j *imageJudge) judge(s *service) (resolved bool) {
	if j.table.services[s.key] != s || s.machine.Deleted() {
		return false
	}
	st, planned := unplanned(&s.spec.Spec)
	var have []string
	if planned {
		resolved = j.learn(s)
		st, have = summarize(s.imageList(), j.plan.Nodes[string(s.key)], j.plan.Full[string(s.key)], j.state)
	}
	if s.spec.Spec.PullsLazily() {
		st = st.orFull(s.lazy, j.lazy)
	}
	if len(have) == 0 {
		have = j.others(s)
	}
	if !slices.Equal(have, s.haveImages) {
		s.haveImages = have
		j.cluster.PreferNodes(s.key, have)
	}
	if st == s.images {
		if resolved || s.lazy != s.reported.lazy {
			j.changed.check(s)
		}
		return resolved
	}
	s.images = st
	switch {
	case !st.failed():
		if st.Ready != imagesNotReady {
			s.imageFailure = ""
		}
	case s.imageFailure != st.Reason: // once, and not for each node and attempt
		s.imageFailure = st.Reason
		j.events.emit(Event{
			Time: time.Now(), Kind: EventImages, Service: s.key, Severity: SeverityWarning, Text: st.Message,
		})
	}
	j.changed.check(s)
	return resolved
}

// learn resolves the names of a service's images, and reports whether there is a new digest.
func (j *imageJudge) learn(s *service) bool {
	if !s.resolved.learn(&s.spec.Spec, j.plan.Nodes[string(s.key)], j.report) {
		return false
	}
	for _, d := range s.resolved.list {
		j.rename(d.Image, s.resolved.names[d.Image], d.Digest)
	}
	return true
}

// others returns the nodes of a service whose images no node has completely, without the nodes that cannot get all of
// an image.
func (j *imageJudge) others(s *service) []string {
	nodes := j.plan.Nodes[string(s.key)]
	rest := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		return slices.ContainsFunc(s.imageList(), func(i placement.Image) bool {
			return j.report(node, i.Name).Reason == cri.ReasonUnreadable
		})
	})
	if len(rest) == len(nodes) {
		return nil
	}
	return rest
}
