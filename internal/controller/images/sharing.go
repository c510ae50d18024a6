// SPDX-License-Identifier: Apache-2.0

package images

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/wire"
)

// A node shares an image with others if its daemon pulls the image, without credentials, or if a pod that uses it may
// run on the node: kubelet pulls it then, and the node finds out whether that takes credentials, in which case it does
// not share it.

// sharing tells nodes what they may share with others.
type sharing struct {
	*state
	host Host
}

// shares reports whether a node may share a repository.
func (p *state) shares(node, repository string) bool {
	n := p.nodes[node]
	if n == nil {
		return false
	}
	_, planned := slices.BinarySearch(n.shared, repository)
	_, needed := slices.BinarySearch(n.needed, repository)
	return planned || needed
}

// sharedOf returns the repositories of images that a node's daemon pulls, each once. Images that only kubelet can pull,
// with credentials, are left out.
func sharedOf(images []wire.WantedImage) []string {
	var out []string
	for _, i := range images {
		if i.Policy != wire.ImageNever {
			out = append(out, imageref.Repository(i.Ref))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// tellNeeded sends the nodes that share images the repositories of all services whose pods may run there, unless they
// got them in this session.
func (p *sharing) tellNeeded() {
	var all *needs
	for _, n := range p.nodes {
		if !n.described || n.session == 0 || n.mirror != n.session {
			n.needed, n.neededIn = nil, 0
			continue
		}
		if all == nil {
			all = p.needs()
		}
		needed := all.on(&n.Node)
		if n.neededIn == n.session && slices.Equal(needed, n.needed) {
			continue
		}
		if n.neededIn != n.session {
			n.neededIn, n.neededGeneration = n.session, 0
		}
		n.needed, n.neededGeneration = needed, n.neededGeneration+1
		for _, m := range wire.NewRepositories(n.neededGeneration, needed) {
			p.host.Send(n.session, m)
		}
	}
}

// needs are the repositories of the images that the pods of services may have pulled.
type needs struct {
	anywhere []string // of pods without constraints; sorted
	bound    []need
}

// need is that of a service whose pods have constraints.
type need struct {
	pod          *corev1.PodSpec
	repositories []string
}

// needs returns those of all services.
func (p *sharing) needs() *needs {
	out := &needs{}
	for s := range p.host.Services() {
		if s.spec.Spec.SplitsTraffic() {
			continue
		}
		var repositories []string
		for _, image := range s.spec.Spec.Images() {
			repository := imageref.Repository(image.Ref)
			if repository != "" && len(repository) <= wire.MaxImageText && image.Policy != corev1.PullNever {
				repositories = append(repositories, repository)
			}
		}
		pod := s.podSpec()
		if pod == nil || pod.NodeName == "" && len(pod.NodeSelector) == 0 && pod.Affinity == nil &&
			len(pod.Tolerations) == 0 {
			out.anywhere = append(out.anywhere, repositories...)
		} else {
			out.bound = append(out.bound, need{pod, repositories})
		}
	}
	slices.Sort(out.anywhere)
	out.anywhere = slices.Compact(out.anywhere)
	return out
}

// on returns the repositories of services whose pods may run on a node, sorted.
func (d *needs) on(n *placement.Node) []string {
	var out []string
	for _, b := range d.bound {
		if placement.Fits(b.pod, n) {
			out = append(out, b.repositories...)
		}
	}
	if placement.Fits(nil, n) {
		if out == nil {
			return d.anywhere[:min(len(d.anywhere), wire.MaxRepositories)]
		}
		out = append(out, d.anywhere...)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), wire.MaxRepositories)]
}
