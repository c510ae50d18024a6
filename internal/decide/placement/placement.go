// SPDX-License-Identifier: Apache-2.0

// Package placement decides which nodes hold the images of which services. Its functions are pure.
package placement

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Image is an image of a service.
type Image struct {
	// Ref is the name that a user gave it. It decides which nodes hold the image.
	Ref string
	// Name is the name that nodes pull: Ref, or Ref with the digest that the service must run.
	Name   string
	Policy corev1.PullPolicy
	// Lazy is set if pods should start before the image is complete.
	Lazy bool
}

// Service is a service whose images are pulled ahead of need.
type Service struct {
	// Key names the service.
	Key    string
	Images []Image
	// Nodes is the number of nodes to place on; 0: all.
	Nodes int
	// Pod has the node selector, required node affinity and tolerations that decide where the pods could run. Nil for
	// a pod without any.
	Pod *corev1.PodSpec
	// Hash changes with the spec; images with policy Always are then pulled again.
	Hash string
}

// Want is an image that a node should have, by Image.Name. Lazy is set if all its services on the node want it
// lazily. Revision changes with the spec of any service that uses the image with policy Always.
type Want struct {
	Name     string
	Policy   corev1.PullPolicy
	Lazy     bool
	Revision uint64
}

// Plan is the result of Place.
type Plan struct {
	// Nodes are the names of the nodes of each service, the preferred one first; none if there is no node for it.
	Nodes map[string][]string
	// Wants are the images of each node, by their names.
	Wants map[string][]Want
	// Full are the services that have fewer nodes than they should because nodes already have as many images as they
	// may.
	Full map[string]bool
}

// Place decides. A service gets the nodes with the highest scores among those where its pods could run (rendezvous
// hashing of the node's name and the service's images), so that services with the same images share nodes, and the
// arrival or loss of a node moves no image between two others. A node gets at most limit images; services that come
// first by name go first.
func Place(services []Service, nodes []Node, limit int) Plan {
	services = slices.SortedFunc(slices.Values(services), func(a, b Service) int { return cmp.Compare(a.Key, b.Key) })
	scores := make([]uint64, len(nodes))
	for i := range nodes {
		scores[i] = Mix(Sum([]byte(nodes[i].Name)))
	}
	p := Plan{
		Nodes: make(map[string][]string, len(services)), Wants: map[string][]Want{}, Full: map[string]bool{},
	}
	held := make(map[string]map[string]*Want, len(nodes))
	for i := range services {
		s := &services[i]
		for _, name := range order(s, nodes, scores) {
			if s.Nodes > 0 && len(p.Nodes[s.Key]) == s.Nodes {
				break
			}
			on := held[name]
			if on == nil {
				on = map[string]*Want{}
				held[name] = on
			}
			if len(on)+missing(on, s.Images) > limit {
				p.Full[s.Key] = true
				continue
			}
			p.Nodes[s.Key] = append(p.Nodes[s.Key], name)
			for _, image := range s.Images {
				add(on, image, s)
			}
		}
		if s.Nodes > 0 && len(p.Nodes[s.Key]) == s.Nodes {
			delete(p.Full, s.Key)
		}
	}
	for name, on := range held {
		for _, image := range slices.Sorted(maps.Keys(on)) {
			p.Wants[name] = append(p.Wants[name], *on[image])
		}
	}
	return p
}

// missing counts a service's images that the node does not have yet.
func missing(on map[string]*Want, images []Image) int {
	n := 0
	for i, image := range images {
		again := slices.ContainsFunc(images[:i], func(o Image) bool { return o.Name == image.Name })
		if on[image.Name] == nil && !again {
			n++
		}
	}
	return n
}

// strength orders policies: of several services, the strictest policy decides.
var strength = map[corev1.PullPolicy]int{corev1.PullNever: 1, corev1.PullIfNotPresent: 2, corev1.PullAlways: 3}

// add adds an image to a node.
func add(on map[string]*Want, image Image, s *Service) {
	w := on[image.Name]
	if w == nil {
		w = &Want{Name: image.Name, Policy: image.Policy, Lazy: image.Lazy}
		on[image.Name] = w
	}
	w.Lazy = w.Lazy && image.Lazy
	if strength[image.Policy] > strength[w.Policy] {
		w.Policy = image.Policy
	}
	if image.Policy == corev1.PullAlways {
		// A sum, as services come in any order.
		w.Revision += Mix(Sum([]byte(s.Key + "\x00" + s.Hash)))
	}
}

// order returns the nodes where the pods of a service could run, preferred nodes for its images first.
func order(s *Service, nodes []Node, scores []uint64) []string {
	refs := make([]string, len(s.Images))
	for i, image := range s.Images {
		refs[i] = image.Ref
	}
	slices.Sort(refs)
	key := Sum([]byte(strings.Join(slices.Compact(refs), "\x00")))
	type scored struct {
		name  string
		score uint64
	}
	var fit []scored
	for i := range nodes {
		if Fits(s.Pod, &nodes[i]) {
			fit = append(fit, scored{nodes[i].Name, Mix(scores[i] ^ key)})
		}
	}
	slices.SortFunc(fit, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.name, b.name))
	})
	names := make([]string, len(fit))
	for i := range fit {
		names[i] = fit[i].name
	}
	return names
}
