// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ImagePullWhen says when the images of a service are pulled.
type ImagePullWhen string

// The values of ImagePull.When.
const (
	PullOnCreate ImagePullWhen = "Create" // as soon as the service exists, and when its images change
	PullOnWake   ImagePullWhen = "Wake"   // by the first wake on a node
)

// ImagePullMode says how much of an image is on a node before containers start from it.
type ImagePullMode string

// The values of ImagePull.Mode.
const (
	PullFull ImagePullMode = "Full" // all of it
	PullLazy ImagePullMode = "Lazy" // what containers read comes first, and everything else follows
)

// LazyRuntime is the name of the RuntimeClass, and of its handler in container runtimes, whose pods start before their
// image is here.
const LazyRuntime = "wangell-lazy"

// AnnotationHandler is the annotation of pods by which kubelet tells containerd the handler of their RuntimeClass when
// it pulls their images, without the feature gate RuntimeClassInImageCriApi (KEP-4216).
const AnnotationHandler = "io.containerd.cri.runtime-handler"

// LabelLazy is the label of nodes that are set up for LazyRuntime, with the value "true".
const LabelLazy = Group + "/lazy"

// PullNodesAll is the value of ImagePull.Nodes that means every node on which the pods could run.
const PullNodesAll = "All"

// DefaultPullNodes is how many nodes hold the images of a service that has fewer pods.
const DefaultPullNodes = 2

// ImagePull says how the images of a service come to the nodes.
type ImagePull struct {
	// Policy is IfNotPresent, Always or Never, like imagePullPolicy, which must not differ. With a template, write
	// imagePullPolicy in its containers instead. Default: imagePullPolicy.
	// +optional
	// +kubebuilder:validation:Enum=IfNotPresent;Always;Never
	Policy corev1.PullPolicy `json:"policy,omitempty"`
	// When is Create, so that the images are pulled as soon as the service exists and its first client does not wait for
	// them, or Wake. Default: Create.
	// +optional
	// +kubebuilder:validation:Enum=Create;Wake
	When ImagePullWhen `json:"when,omitempty"`
	// Mode is Full, or Lazy so that containers start before their image is here. Lazy needs an image in eStargz or
	// zstd:chunked, and nodes that are set up for it; otherwise the image is pulled in full. Default: Full.
	// +optional
	// +kubebuilder:validation:Enum=Full;Lazy
	Mode ImagePullMode `json:"mode,omitempty"`
	// Optimise has the image rewritten after the first wakes, so that what the service reads first comes first, and makes
	// later pods use the result, which is stored in the image's repository with "-optimised" after its tag. It needs mode
	// Lazy, policy IfNotPresent, an image with a tag, and a registry that this machine may push to. One machine only.
	// +optional
	Optimise bool `json:"optimise,omitempty"`
	// Nodes is the number of nodes that hold the images, 1-1000, or All for every node on which the pods could run.
	// Default: 2, or maxReplicas if that is more. Kubernetes only.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 1000 : self == 'All'",message="want a number from 1 to 1000, or All: write nodes: 2, for example"
	Nodes *intstr.IntOrString `json:"nodes,omitempty"`
}

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

// Containers returns the containers of a pod to read or change, the init containers first.
func Containers(pod *corev1.PodSpec) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
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
