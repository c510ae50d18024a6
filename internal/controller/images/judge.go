// SPDX-License-Identifier: Apache-2.0

package images

import (
	"slices"
	"time"

	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// judge tells users and the runtime about the images of services.
type judge struct {
	*state
	host    Host
	cluster runtime.Cluster
	lazy    bool // Config.Lazy
	// news is called when the services that use an image are to be judged again.
	news func(image string)
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
	if planned {
		st.VolumesNotKept = j.notKept(s)
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
	if text := st.VolumesNotKept; text != "" && text != s.notKept {
		s.notKept = text
		j.host.NotKept(s.key, text)
	}
	j.host.Changed(s)
	return resolved
}

// learn resolves the names of a service's images, and reports whether there is a new digest.
func (j *judge) learn(s *Service) bool {
	learned, disputed := s.Digests.learn(&s.spec.Spec, votes{
		nodes: j.plan.Nodes[string(s.key)], report: j.report, state: j.stateOn, alone: func() bool { return j.alone(s) },
	})
	for _, ref := range disputed {
		learned = j.pullAgain(ref) || learned
	}
	if !learned {
		return false
	}
	for _, d := range s.Digests.List {
		j.rename(d.Image, s.Digests.names[d.Image], d.Digest)
		delete(j.disputes, d.Image)
	}
	return true
}

// notKept returns the message about volumes of a service's images that are lost with each pod, from the first node that
// has each image.
func (j *judge) notKept(s *Service) string {
	declared := map[string][]string{}
	for _, image := range s.list() {
		for _, node := range j.plan.Nodes[string(s.key)] {
			if r := j.report(node, image.Name); r.State == wire.ImagePresent {
				declared[image.Ref] = r.Volumes
				break
			}
		}
	}
	paths := s.spec.Spec.LostVolumes(func(image string) []string { return declared[image] })
	return s.spec.Spec.UnkeptVolumes(paths, true)
}

// alone reports whether the pods of a service could run on one node only.
func (j *judge) alone(s *Service) bool {
	pod, n := s.podSpec(), 0
	for _, at := range j.nodes {
		if at.described && placement.Fits(pod, &at.Node) {
			n++
		}
	}
	return n == 1
}

// pullAgain has all nodes pull an image of which each has another content, and reports whether they are to do so now.
func (j *judge) pullAgain(ref string) bool {
	d := j.disputes[ref]
	if d == nil {
		d = &dispute{}
		j.disputes[ref] = d
	}
	pause := d.next(time.Now())
	if pause == 0 {
		return false
	}
	j.host.After(pause, func() { j.news(ref) })
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
