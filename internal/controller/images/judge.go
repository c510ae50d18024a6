// SPDX-License-Identifier: Apache-2.0

package images

import (
	"slices"

	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// judge tells users and the runtime about the images of services.
type judge struct {
	*state
	host    Host
	cluster runtime.Cluster
	lazy    bool // Config.Lazy
}

// service reports the state of a service's images to users and the runtime, if it has changed. resolved is set if names
// of images were resolved anew.
func (j *judge) service(s *Service) (resolved bool) {
	if !j.host.Has(s) {
		return false
	}
	st, planned := unplanned(&s.spec.Spec)
	var have []string
	if planned {
		resolved = j.learn(s)
		st, have = summarize(s.list(), j.plan.Nodes[string(s.key)], j.plan.Full[string(s.key)], j.stateOn)
	}
	if s.spec.Spec.PullsLazily() {
		st = orFull(st, s.Lazy, j.lazy)
	}
	if len(have) == 0 {
		have = j.others(s)
	}
	if !slices.Equal(have, s.have) {
		s.have = have
		j.cluster.PreferNodes(s.key, have)
	}
	if st == s.Status {
		if resolved || s.Lazy != s.told {
			s.told = s.Lazy
			j.host.Changed(s)
		}
		return resolved
	}
	s.Status, s.told = st, s.Lazy
	switch {
	case !st.Failed():
		if st.Ready != status.ImagesNotReady {
			s.failure = ""
		}
	case s.failure != st.Reason: // once, and not for each node and attempt
		s.failure = st.Reason
		j.host.Failed(s.key, st)
	}
	j.host.Changed(s)
	return resolved
}

// learn resolves the names of a service's images, and reports whether there is a new digest.
func (j *judge) learn(s *Service) bool {
	if !s.Digests.learn(&s.spec.Spec, j.plan.Nodes[string(s.key)], j.report) {
		return false
	}
	for _, d := range s.Digests.List {
		j.rename(d.Image, s.Digests.names[d.Image], d.Digest)
	}
	return true
}

// others returns the nodes of a service whose images no node has completely, without the nodes that cannot get all of
// an image.
func (j *judge) others(s *Service) []string {
	nodes := j.plan.Nodes[string(s.key)]
	rest := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		return slices.ContainsFunc(s.list(), func(i placement.Image) bool {
			return j.report(node, i.Name).Reason == cri.ReasonUnreadable
		})
	})
	if len(rest) == len(nodes) {
		return nil
	}
	return rest
}
