// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
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
