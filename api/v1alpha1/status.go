// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WangellServiceStatus is the observed state of a service.
type WangellServiceStatus struct {
	// LatestRequest is the time of the last packet to or from the service. It may lag by some seconds.
	// +optional
	LatestRequest *metav1.Time `json:"latestRequest,omitempty"`
	// LoadBalancerIP is the service address, without the port.
	// +optional
	LoadBalancerIP string `json:"loadBalancerIP,omitempty"`
	// LoadBalancerHostname is the host name by which clients outside reach the load balancer of another class, if that
	// gives no IPv4 address. LoadBalancerIP is then the service address inside the cluster. Kubernetes only.
	// +optional
	LoadBalancerHostname string `json:"loadBalancerHostname,omitempty"`
	// Replicas is the number of running pods.
	// +optional
	// +kubebuilder:default=0
	Replicas int32 `json:"replicas"`
	// State is the state of the service: Cold, Waking, Warm, Frozen, Stopping or Failed.
	// +optional
	State string `json:"state,omitempty"`
	// Message explains the state where that helps.
	// +optional
	Message string `json:"message,omitempty"`
	// DesiredReplicas is the number of pods that Wangell wants, 0 while the service sleeps. Kubernetes only.
	// +optional
	DesiredReplicas int32 `json:"desiredReplicas,omitempty"`
	// Selector is the label selector of the service's pods, for autoscalers. Kubernetes only.
	// +optional
	Selector string `json:"selector,omitempty"`
	// ObservedGeneration is the generation of the spec that the status describes. Kubernetes only.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions include Ready, Awake, AddressAssigned, Progressing and Scheduled; docs/operations/conditions.md lists
	// all of them. Kubernetes only.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastWake describes the last wake, phase by phase. Kubernetes only.
	// +optional
	LastWake *LastWake `json:"lastWake,omitempty"`
	// ImageDigests are the contents that the names of the service's images stand for: they are resolved once, and all
	// pods run them. Images with the policy Always or Never have none.
	// +optional
	// +listType=map
	// +listMapKey=image
	ImageDigests []ImageDigest `json:"imageDigests,omitempty"`
	// UseHistory is what sleep.predict has learned about the times between uses of the service, at most 4096 bytes.
	// Its form may change between versions. Kubernetes only; one machine has it in the state folder.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	UseHistory string `json:"useHistory,omitempty"`
}

// ImageDigest is the content that the name of an image stands for.
type ImageDigest struct {
	// Image is the name as the spec has it.
	Image string `json:"image"`
	// Digest is that of the image's manifest or index, "sha256:…".
	Digest string `json:"digest"`
}

// LastWake describes a past or current wake.
type LastWake struct {
	// Start is the time of the first SYN.
	Start metav1.Time `json:"start"`
	// Result is running, warm, failed or cancelled.
	Result string `json:"result"`
	// Reason explains a wake that did not end warm.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Phases are the completed phases in chronological order.
	// +optional
	// +listType=atomic
	Phases []WakePhase `json:"phases,omitempty"`
}

// WakePhase is the end of one phase of a wake.
type WakePhase struct {
	// Name is the name of the phase: syn-seen, told, handled, sandbox, created, started, listening, released, ...
	Name string `json:"name"`
	// Ms is the end of the phase, in milliseconds since the first SYN.
	Ms int64 `json:"ms"`
}
