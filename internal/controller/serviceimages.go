// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/placement"
)

// imageList returns the images of the service's pods by the names that nodes pull.
func (s *service) imageList() []placement.Image {
	spec := &s.spec.Spec
	var out []placement.Image
	for _, image := range spec.Images() {
		name := image.Ref
		if resolves(spec, image) {
			name = cmp.Or(s.resolved.names[image.Ref], name)
		}
		out = append(out, placement.Image{Ref: image.Ref, Name: name, Policy: image.Policy, Lazy: s.lazy == LazyOn})
	}
	return out
}

// placed returns what decides which nodes have the images of a service.
func (s *service) placed() placement.Service {
	spec := &s.spec.Spec
	out := placement.Service{
		Key: string(s.key), Images: s.imageList(), Nodes: spec.PullNodes(), Hash: cmp.Or(s.hash, v1alpha1.Hash(spec)),
	}
	out.Pod = s.podSpec()
	return out
}

// podSpec returns what decides where the pods of a service could run; nil if nothing does.
func (s *service) podSpec() *corev1.PodSpec {
	switch spec := &s.spec.Spec; {
	case s.lazy == LazyOn:
		return lazyPod(spec)
	case spec.Template != nil:
		return &spec.Template.Spec
	}
	return nil
}

// hasPullSecrets reports whether the pods of a service name Secrets for registries.
func (s *service) hasPullSecrets() bool {
	t := s.spec.Spec.Template
	return t != nil && len(t.Spec.ImagePullSecrets) > 0
}
