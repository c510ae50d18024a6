// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PullsOnCreate reports whether the images of the service are pulled ahead of need.
func (s *WangellServiceSpec) PullsOnCreate() bool {
	return s.ImagePull == nil || s.ImagePull.When != PullOnWake
}

// PullsLazily reports whether containers are to start before their image is here.
func (s *WangellServiceSpec) PullsLazily() bool {
	return s.ImagePull != nil && s.ImagePull.Mode == PullLazy
}

// Optimises reports whether the service's image is to be rewritten so that what is read first comes first.
func (s *WangellServiceSpec) Optimises() bool { return s.PullsLazily() && s.ImagePull.Optimise }

// PullNodes returns on how many nodes the images of the service are kept; 0 for all. The spec must be valid.
func (s *WangellServiceSpec) PullNodes() int {
	switch p := s.ImagePull; {
	case p == nil || p.Nodes == nil:
		return max(DefaultPullNodes, int(mostPods(s)))
	case p.Nodes.Type == intstr.String:
		return 0
	default:
		return p.Nodes.IntValue()
	}
}

// ContainerImage is an image of a pod.
type ContainerImage struct {
	Ref    string
	Policy corev1.PullPolicy
}

// Images returns the images of the service's pods in the order of their containers, each once for each policy. The spec
// must have its defaults.
func (s *WangellServiceSpec) Images() []ContainerImage {
	var out []ContainerImage
	add := func(image string, policy corev1.PullPolicy) {
		i := ContainerImage{image, policy}
		setDefault(&i.Policy, corev1.PullIfNotPresent)
		if i.Ref != "" && !slices.Contains(out, i) {
			out = append(out, i)
		}
	}
	if s.Template == nil {
		add(s.Image, s.ImagePullPolicy)
		for c := range s.Others {
			add(c.Image, c.ImagePullPolicy)
		}
		return out
	}
	for c := range Containers(&s.Template.Spec) {
		add(c.Image, c.ImagePullPolicy)
	}
	return out
}

// imagePull checks how the images of a service come to the nodes.
func (e *ValidationErrors) imagePull(s *WangellServiceSpec) {
	pull := s.ImagePull
	if pull == nil {
		return
	}
	p := specPath.Child("imagePull")
	e.oneOf(p.Child("policy"), string(pull.Policy),
		string(corev1.PullIfNotPresent), string(corev1.PullAlways), string(corev1.PullNever))
	e.oneOf(p.Child("when"), string(pull.When), string(PullOnCreate), string(PullOnWake))
	e.oneOf(p.Child("mode"), string(pull.Mode), string(PullFull), string(PullLazy))
	switch {
	case pull.Policy != "" && s.Template != nil:
		e.add(p.Child("policy"), "write imagePullPolicy in spec.template.spec.containers, or leave spec.template out",
			"cannot be set beside template, which describes the whole pod")
	case pull.Policy != "" && s.ImagePullPolicy != "" && pull.Policy != s.ImagePullPolicy:
		e.add(p.Child("policy"), "write one of the two", "is %s, but imagePullPolicy is %s", pull.Policy, s.ImagePullPolicy)
	}
	if pull.Optimise {
		e.optimise(p, s)
	}
	if n := pull.Nodes; n != nil {
		r := ranges["spec.imagePull.nodes"]
		number := n.Type == intstr.Int && r.Has(int64(n.IntVal))
		if !number && (n.Type == intstr.Int || n.StrVal != PullNodesAll) {
			e.add(p.Child("nodes"), "write nodes: 2, for example", "want %s, or All, got %s", r, n.String())
		}
	}
}

// optimise checks whether the image of a service can be optimised.
func (e *ValidationErrors) optimise(p *field.Path, s *WangellServiceSpec) {
	o := p.Child("optimise")
	if s.ImagePull.Mode != PullLazy {
		e.add(o, "write mode: Lazy, or remove it", "needs mode Lazy")
	}
	if policy := cmp.Or(s.ImagePullPolicy, s.ImagePull.Policy); policy != "" && policy != corev1.PullIfNotPresent {
		e.add(o, "write policy: IfNotPresent, or remove it",
			"does not go with the policy %s, by which the registry decides what runs", policy)
	}
	if strings.Contains(s.Image, "@") {
		e.add(o, "name the image by a tag, or remove it", "needs an image with a tag, for the name of the result")
	}
}
