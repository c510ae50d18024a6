// SPDX-License-Identifier: Apache-2.0

package images

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/status"
)

// Service is a service, as far as its images are concerned. The controller makes it with Set, and reads the other
// fields, which a Planner writes. It belongs to the controller's loop.
type Service struct {
	key  v1alpha1.Key
	spec *v1alpha1.WangellService // with defaults; never changed in place
	hash string                   // of the spec

	// Digests are those of the images' tags.
	Digests Digests
	// Lazy says whether its pods start before their image is complete, on a cluster.
	Lazy status.LazyPulls
	// Status is the state of its images on the nodes of a cluster; zero while it is unknown.
	Status status.Images

	told status.LazyPulls // Lazy when the host was last told of a change
	have []string         // nodes that have all its images, as last given to the runtime
	// failure is the last reported reason why its images are on no node; empty if they are on one.
	failure string
	// notKept is the last told text about volumes that are lost with each pod.
	notKept string
}

// Set sets the manifest, with defaults, and its hash (v1alpha1.Hash). Digests that the manifest does not need are
// dropped.
func (s *Service) Set(spec *v1alpha1.WangellService, hash string) {
	s.key, s.spec, s.hash = v1alpha1.KeyOf(spec), spec, hash
	s.Digests.Set(&spec.Spec, s.Digests.List)
}

// Key names the service.
func (s *Service) Key() v1alpha1.Key { return s.key }

// list returns the images of the service's pods by the names that nodes pull.
func (s *Service) list() []placement.Image {
	spec := &s.spec.Spec
	var out []placement.Image
	for _, image := range spec.Images() {
		name := image.Ref
		if resolves(spec, image) {
			name = cmp.Or(s.Digests.names[image.Ref], name)
		}
		out = append(out, placement.Image{Ref: image.Ref, Name: name, Policy: image.Policy, Lazy: s.Lazy == status.LazyOn})
	}
	return out
}

// placed returns what decides which nodes have the images of the service.
func (s *Service) placed() placement.Service {
	return placement.Service{
		Key: string(s.key), Images: s.list(), Nodes: s.spec.Spec.PullNodes(), Hash: s.hash, Pod: s.podSpec(),
	}
}

// podSpec returns what decides where the pods of the service could run; nil if nothing does.
func (s *Service) podSpec() *corev1.PodSpec {
	switch spec := &s.spec.Spec; {
	case s.Lazy == status.LazyOn:
		return lazyPod(spec)
	case spec.Template != nil:
		return &spec.Template.Spec
	}
	return nil
}

// hasPullSecrets reports whether the pods of the service name Secrets for registries.
func (s *Service) hasPullSecrets() bool {
	t := s.spec.Spec.Template
	return t != nil && len(t.Spec.ImagePullSecrets) > 0
}
