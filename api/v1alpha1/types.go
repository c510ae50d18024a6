// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the manifest: the kind WangellService of the group wangell.loutres.me, as a
// user writes it for one machine and for Kubernetes alike.
//
// The package is also the source of the CustomResourceDefinition (deploy/crd) and of its own deep
// copies; `go generate ./api/...` writes both.
//
// +kubebuilder:object:generate=true
// +groupName=wangell.loutres.me
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:generate go tool controller-gen object paths=.
//go:generate go run wangell.loutres.me/api/crd -o ../../deploy/crd

// Names of the group, version and kind, as they stand in a manifest.
const (
	Group      = "wangell.loutres.me"
	Version    = "v1alpha1"
	Kind       = "WangellService"
	APIVersion = Group + "/" + Version
)

// Labels of the pods of a service on Kubernetes. Daemons know by them which pods are Wangell's.
const (
	// LabelService has the name of the service whose pod it is; the namespace is the pod's own.
	LabelService = Group + "/service"
	// LabelSpecHash has the Hash of the spec from which the pod was made.
	LabelSpecHash = Group + "/spec-hash"
	// AnnotationContainer names the main container of the pod: the one that listens on the target port.
	AnnotationContainer = Group + "/container"
	// AnnotationTargetPort is the annotation of a pod with the port on which its main container listens.
	AnnotationTargetPort = Group + "/target-port"
)

// LoadBalancerClass is the class of Services whose addresses Wangell gives and announces itself.
const LoadBalancerClass = Group + "/gate"

// WangellService is a TCP service that sleeps while nobody uses it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=wgs,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.status.loadBalancerIP`
// +kubebuilder:printcolumn:name="Port",type=integer,JSONPath=`.spec.port`,priority=1
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Last request",type=date,JSONPath=`.status.latestRequest`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",message="metadata.name: write at most 63 of a-z, 0-9 and -, a letter first and a letter or digit last: the service's Kubernetes Service has the same name"
type WangellService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WangellServiceSpec `json:"spec"`
	// +optional
	Status WangellServiceStatus `json:"status,omitempty"`
}

// WangellServiceList is a list of services.
//
// +kubebuilder:object:root=true
type WangellServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WangellService `json:"items"`
}

// WangellServiceSpec is what the user wants. The names are those that Kubernetes users know from a
// container and a pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.image) || has(self.template)",message="missing: write which image to run, for example image: registry.example.com/app:v1, or a whole pod as template"
// +kubebuilder:validation:XValidation:rule="!(has(self.image) && has(self.template))",message="image and template are both given: write image in template.spec.containers, or leave template out"
// +kubebuilder:validation:XValidation:rule="!has(self.template) || !(has(self.command) || has(self.args) || has(self.workingDir) || has(self.env) || has(self.resources) || has(self.volumes) || has(self.volumeMounts) || has(self.securityContext) || has(self.imagePullPolicy) || has(self.serviceAccountName) || has(self.automountServiceAccountToken) || has(self.enableServiceLinks))",message="command, args, workingDir, env, resources, volumes, volumeMounts, securityContext, imagePullPolicy, serviceAccountName, automountServiceAccountToken and enableServiceLinks go with image: write them in template.spec, or leave template out"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || !has(self.minReplicas) || self.maxReplicas >= self.minReplicas",message="maxReplicas is less than minReplicas: raise maxReplicas or lower minReplicas"
// +kubebuilder:validation:XValidation:rule="has(self.maxReplicas) || !has(self.minReplicas) || self.minReplicas <= 1 || has(self.scaling)",message="minReplicas is more than maxReplicas, which is 1 where neither maxReplicas nor scaling is given: write maxReplicas, too"
type WangellServiceSpec struct {
	// Image is the container image, as a registry reference. Required, unless Template is given.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image,omitempty"`
	// TargetPort is the TCP port on which the container listens, 1-65535. Default: Port.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="want a port from 1 to 65535: write targetPort: 8080, for example"
	TargetPort int32 `json:"targetPort,omitempty"`
	// Port is the TCP port of the service address, 1-65535. Required.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="want a port from 1 to 65535: write port: 80, for example"
	Port int32 `json:"port"`
	// IdleTimeout is how many seconds without a packet pass before the service sleeps, 1-31536000.
	// Default: 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 31536000",message="want seconds from 1 to 31536000: write idleTimeout: 300, for example"
	IdleTimeout int64 `json:"idleTimeout,omitempty"`

	// Address is the service address to use (IPv4). Default: one from the range of the instance.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).family() == 4 && ip(self).isGlobalUnicast()",message="want an IPv4 address that clients can use: write address: 10.46.100.5, for example, or leave it out"
	Address string `json:"address,omitempty"`
	// ImagePullPolicy is Always, IfNotPresent or Never. Default: IfNotPresent, for every tag: an
	// image is not asked for again while a client waits.
	// +optional
	// +kubebuilder:validation:Enum=IfNotPresent;Always;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// Command replaces the image's entrypoint.
	// +optional
	Command []string `json:"command,omitempty"`
	// Args replaces the image's command.
	// +optional
	Args []string `json:"args,omitempty"`
	// WorkingDir replaces the image's working directory.
	// +optional
	WorkingDir string `json:"workingDir,omitempty"`
	// Env is added to the image's environment. valueFrom is refused on one machine.
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// Resources: limits for cpu and memory.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`
	// Volumes: hostPath and emptyDir; on Kubernetes every kind.
	// +optional
	Volumes []corev1.Volume `json:"volumes,omitempty"`
	// VolumeMounts puts Volumes into the container's file system.
	// +optional
	VolumeMounts []corev1.VolumeMount `json:"volumeMounts,omitempty"`
	// SecurityContext: runAsUser, runAsGroup, readOnlyRootFilesystem, capabilities, privileged; on
	// Kubernetes all of it.
	// +optional
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`

	// WakeTimeout is how many seconds a wake may take before the parked clients are refused, 1-3600.
	// Default: 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="want seconds from 1 to 3600: write wakeTimeout: 60, for example"
	WakeTimeout int64 `json:"wakeTimeout,omitempty"`
	// TerminationGracePeriodSeconds is how many seconds the container has between SIGTERM and
	// SIGKILL, 0-3600. Default: that of template, or 30.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="want seconds from 0 to 3600: write terminationGracePeriodSeconds: 30, for example"
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// MaxParked is how many connection requests (SYNs) are kept at most while the service wakes, 1-4096.
	// Default: 1024.
	// +optional
	// +kubebuilder:default=1024
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 4096",message="want a number from 1 to 4096: write maxParked: 1024, for example"
	MaxParked int32 `json:"maxParked,omitempty"`
	// MaxParkedPerSource is how many of them one client address may have, 1-4096. Default: 512, or
	// MaxParked if that is less.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 4096",message="want a number from 1 to 4096: write maxParkedPerSource: 512, for example"
	MaxParkedPerSource int32 `json:"maxParkedPerSource,omitempty"`

	// MinReplicas is how many pods run even while nobody uses the service, 0-32. Default: 0, the
	// service sleeps.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 32",message="want a number from 0 to 32: write minReplicas: 0, for example"
	MinReplicas int32 `json:"minReplicas,omitempty"`
	// MaxReplicas is how many pods run at most, 1-32. Default: 1; with Scaling 10, or MinReplicas if
	// that is more.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 32",message="want a number from 1 to 32: write maxReplicas: 3, for example"
	MaxReplicas int32 `json:"maxReplicas,omitempty"`
	// Scaling has the number of pods follow the load. Default: the service has one pod while it is used.
	// +optional
	Scaling *Scaling `json:"scaling,omitempty"`
	// SessionAffinity is None or ClientIP: a client address keeps its pod. Default: None, a new
	// connection goes to the pod with the fewest open ones.
	// +optional
	// +kubebuilder:validation:Enum=None;ClientIP
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`
	// Balancing refines the choice of a pod.
	// +optional
	Balancing *Balancing `json:"balancing,omitempty"`
	// Retries is to how many other pods a connection request is given at most, after one that refused
	// it or did not answer, 0-8. Default: 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 8",message="want a number from 0 to 8: write retries: 2, for example"
	Retries *int32 `json:"retries,omitempty"`
	// DrainTimeout is how many seconds the open connections of a pod that is taken away may go on,
	// 0-86400. Default: 30.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 86400",message="want seconds from 0 to 86400: write drainTimeout: 30, for example"
	DrainTimeout *int64 `json:"drainTimeout,omitempty"`

	// Replicas is how many pods there shall be now: kubectl scale, a HorizontalPodAutoscaler or KEDA
	// write it, and so does Wangell when the service sleeps (0) and wakes. Kubernetes only.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 32",message="want a number from 0 to 32: write replicas: 1, for example, or leave it out"
	Replicas *int32 `json:"replicas,omitempty"`
	// LoadBalancerClass says who gives the service its address: wangell.loutres.me/gate (Wangell, from
	// its own pools) or the class of another load balancer. Default: wangell.loutres.me/gate. Kubernetes only.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
	// ServiceAccountName is the account that the pods run as. Default: default. Kubernetes only.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// AutomountServiceAccountToken mounts the account's token into the pods. Default: false: the volume
	// makes every start some 300 ms slower. Kubernetes only.
	// +optional
	AutomountServiceAccountToken *bool `json:"automountServiceAccountToken,omitempty"`
	// EnableServiceLinks puts the addresses of all Services of the namespace into the environment.
	// Default: false: it makes starts slower where there are many. Kubernetes only.
	// +optional
	EnableServiceLinks *bool `json:"enableServiceLinks,omitempty"`
	// Template is the whole pod, instead of Image and what goes with it. The container named like the
	// service, or else the first one, is the one that listens on TargetPort. What it leaves out is as
	// Kubernetes has it, but for automountServiceAccountToken and enableServiceLinks (false) and
	// imagePullPolicy (IfNotPresent). Kubernetes only.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.spec) && size(self.spec.containers) > 0",message="want spec.containers with at least one container: write spec: {containers: [{name: app, image: registry.example.com/app:v1}]}, for example"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.hostNetwork) || !self.spec.hostNetwork",message="spec.hostNetwork cannot work: the gate reaches a pod by a network of its own: remove it"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Always'",message="spec.restartPolicy: want Always, or leave it out: a Deployment takes no other"
	Template *corev1.PodTemplateSpec `json:"template,omitempty"`
}

// ScalingMetric names what the number of pods follows.
type ScalingMetric string

// The metrics of Scaling.
const (
	MetricConnections ScalingMetric = "connections" // open connections per pod, as the gate counts them
	MetricRate        ScalingMetric = "rate"        // new connections per second and pod
	MetricCPU         ScalingMetric = "cpu"         // percent of the requested CPU
	MetricMemory      ScalingMetric = "memory"      // percent of the requested memory
)

// Scaling has the number of pods follow the load: ceil(pods × value / target), nothing within ±10 %.
// Times are in seconds.
type Scaling struct {
	// Metric is connections (open, per pod), rate (new connections per second and pod), cpu or memory
	// (percent of the request). Default: connections.
	// +optional
	// +kubebuilder:default=connections
	// +kubebuilder:validation:Enum=connections;rate;cpu;memory
	Metric ScalingMetric `json:"metric,omitempty"`
	// Target is what a pod shall have of the metric, 1-1000000. Required.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 1000000",message="want a number from 1 to 1000000: write target: 50, for example"
	Target int32 `json:"target"`
	// OutInterval is how often more pods may be started, 1-3600. Default: 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="want seconds from 1 to 3600: write outInterval: 2, for example"
	OutInterval int64 `json:"outInterval,omitempty"`
	// InInterval is how often pods may be taken away, 1-3600. Default: 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="want seconds from 1 to 3600: write inInterval: 10, for example"
	InInterval int64 `json:"inInterval,omitempty"`
	// OutStabilization is for how long more pods must have been needed before they are started, 0-3600.
	// Default: 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="want seconds from 0 to 3600: write outStabilization: 0, for example"
	OutStabilization *int64 `json:"outStabilization,omitempty"`
	// InStabilization is for how long fewer pods must have been enough before some are taken away,
	// 0-3600. Default: 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="want seconds from 0 to 3600: write inStabilization: 60, for example"
	InStabilization *int64 `json:"inStabilization,omitempty"`
	// MaxStep is how many pods are started or taken away at once at most, 1-32. Default: 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 32",message="want a number from 1 to 32: write maxStep: 4, for example"
	MaxStep int32 `json:"maxStep,omitempty"`
	// BurstPerPod is for how many parked connection requests a sleeping service starts one pod, 1-4096.
	// Default: Target where the metric is connections; else a wake starts one pod.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 4096",message="want a number from 1 to 4096: write burstPerPod: 100, for example, or leave it out"
	BurstPerPod int32 `json:"burstPerPod,omitempty"`
}

// LocalityPreference names how much the place of a pod counts.
type LocalityPreference string

// The values of Balancing's LocalityPreference.
const (
	LocalityNone  LocalityPreference = "None"  // the place of a pod does not count
	LocalityLocal LocalityPreference = "Local" // pods on the node that sees the client come first
)

// Balancing refines the choice of a pod.
type Balancing struct {
	// LocalityPreference is None or Local: pods on the node that sees the client come first. Default: None.
	// +optional
	// +kubebuilder:default=None
	// +kubebuilder:validation:Enum=None;Local
	LocalityPreference LocalityPreference `json:"localityPreference,omitempty"`
}

// WangellServiceStatus is what is.
type WangellServiceStatus struct {
	// LatestRequest is when the service last saw a packet. It may be some seconds old.
	// +optional
	LatestRequest *metav1.Time `json:"latestRequest,omitempty"`
	// LoadBalancerIP is the service address without its port.
	// +optional
	LoadBalancerIP string `json:"loadBalancerIP,omitempty"`
	// Replicas is the number of running pods.
	// +optional
	// +kubebuilder:default=0
	Replicas int32 `json:"replicas"`
	// State is the state of the service: Cold, Waking, Warm, Stopping or Failed.
	// +optional
	State string `json:"state,omitempty"`
	// Message tells why, where State alone does not.
	// +optional
	Message string `json:"message,omitempty"`
	// DesiredReplicas is how many pods Wangell wants: 0 while the service sleeps. Kubernetes only.
	// +optional
	DesiredReplicas int32 `json:"desiredReplicas,omitempty"`
	// Selector finds the service's pods, for those who scale it. Kubernetes only.
	// +optional
	Selector string `json:"selector,omitempty"`
	// ObservedGeneration is the generation of the spec that this status is about. Kubernetes only.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions tell what is right and what is not, see docs/operations.md. Kubernetes only.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// LastWake is the last wake, phase by phase. Kubernetes only.
	// +optional
	LastWake *LastWake `json:"lastWake,omitempty"`
}

// Types of Conditions.
const (
	// ConditionReady: a client that comes is served, after a wake if need be.
	ConditionReady = "Ready"
	// ConditionAwake: a pod serves.
	ConditionAwake = "Awake"
	// ConditionAddressAssigned: the service has its address.
	ConditionAddressAssigned = "AddressAssigned"
	// ConditionProgressing: what the spec asks for is being brought about (True), is there (False,
	// reason Complete), or cannot be brought about (False, another reason).
	ConditionProgressing = "Progressing"
	// ConditionScheduled: every pod that is wanted has a node.
	ConditionScheduled = "Scheduled"
)

// LastWake is a wake as it was.
type LastWake struct {
	// Start is when the first SYN was seen.
	Start metav1.Time `json:"start"`
	// Result is running, warm, failed or cancelled.
	Result string `json:"result"`
	// Reason tells why, where it was not warm in the end.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Phases are those that ended, in order of time.
	// +optional
	// +listType=atomic
	Phases []WakePhase `json:"phases,omitempty"`
}

// WakePhase is when a phase of a wake ended.
type WakePhase struct {
	// Name is the phase: syn-seen, told, handled, sandbox, created, started, listening, released, ...
	Name string `json:"name"`
	// Ms is when it ended, in milliseconds since the first SYN was seen.
	Ms int64 `json:"ms"`
}
