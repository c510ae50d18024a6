// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 defines the manifest: the kind WangellService of the group wangell.loutres.me, which is the same on
// one machine and on Kubernetes.
//
// The CustomResourceDefinition in deploy/crd and the DeepCopy methods are generated from it by `go generate ./api/...`.
//
// +kubebuilder:object:generate=true
// +groupName=wangell.loutres.me
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:generate go tool controller-gen object:headerFile=../../hack/license-header.txt paths=.
//go:generate go run wangell.loutres.me/api/crd -o ../../deploy/crd
//go:generate go run wangell.loutres.me/hack/reference -api . -o ../../docs/manifest/reference.md

// WangellService is a TCP service that sleeps while it is unused.
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
// +kubebuilder:printcolumn:name="Hostname",type=string,JSONPath=`.status.loadBalancerHostname`,priority=1
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

// WangellServiceSpec is the desired state of a service. Fields are named as in a Kubernetes container or pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.port) || has(self.ports)",message="missing: write the port that clients use, for example port: 80, or several as ports"
// +kubebuilder:validation:XValidation:rule="!has(self.ports) || !(has(self.port) || has(self.targetPort) || has(self.appProtocol) || has(self.hostPort) || has(self.hostAddress))",message="port, targetPort, appProtocol, hostPort and hostAddress cannot be set beside ports: write them in the elements of ports, or leave ports out"
// +kubebuilder:validation:XValidation:rule="!has(self.ports) || self.ports.all(p, self.ports.exists_one(o, o.port == p.port))",message="two ports have the same number: change one, or remove it"
// +kubebuilder:validation:XValidation:rule="has(self.image) || has(self.template) || has(self.traffic)",message="missing: write which image to run, for example image: registry.example.com/app:v1, or a whole pod as template"
// +kubebuilder:validation:XValidation:rule="!(has(self.image) && has(self.template))",message="image and template cannot both be set: write image in template.spec.containers, or leave template out"
// +kubebuilder:validation:XValidation:rule="!has(self.template) || !$hasInTemplate",message="$namesInTemplate cannot be set beside template: write them in template.spec, or leave template out"
// +kubebuilder:validation:XValidation:rule="!has(self.imagePull) || !has(self.imagePull.policy) || !has(self.imagePullPolicy) || self.imagePull.policy == self.imagePullPolicy",message="imagePull.policy and imagePullPolicy differ: write one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.imagePull) || !has(self.imagePull.policy) || !has(self.template)",message="imagePull.policy cannot be set beside template: write imagePullPolicy in template.spec.containers, or leave template out"
// +kubebuilder:validation:XValidation:rule="!(has(self.readyWhen) && self.readyWhen == 'Probe') || has(self.readinessProbe) || has(self.template)",message="readyWhen is Probe, but there is no readinessProbe: add readinessProbe: {tcpSocket: {port: 5432}}, for example, or leave readyWhen out"
// +kubebuilder:validation:XValidation:rule="!has(self.readinessProbe) || has(self.readyWhen) && self.readyWhen == 'Probe'",message="readinessProbe is not used unless readyWhen is Probe: add readyWhen: Probe, or leave readinessProbe out"
// +kubebuilder:validation:XValidation:rule="!has(self.startupProbe) || has(self.readyWhen) && self.readyWhen == 'Probe'",message="startupProbe is not used unless readyWhen is Probe: add readyWhen: Probe, or leave startupProbe out"
// +kubebuilder:validation:XValidation:rule="!has(self.maxReplicas) || !has(self.minReplicas) || self.maxReplicas >= self.minReplicas",message="maxReplicas is less than minReplicas: raise maxReplicas or lower minReplicas"
// +kubebuilder:validation:XValidation:rule="has(self.maxReplicas) || !has(self.minReplicas) || self.minReplicas <= 1 || has(self.scaling)",message="minReplicas is more than maxReplicas, which is 1 if neither maxReplicas nor scaling is set: write maxReplicas as well"
// +kubebuilder:validation:XValidation:rule="!has(self.scaling) || !has(self.scaling.metric) || !(self.scaling.metric in ['requests', 'concurrency']) || has(self.balancing) && has(self.balancing.level) && self.balancing.level == 'Request' && !(has(self.balancing.protocol) && self.balancing.protocol == 'TCP')",message="scaling by requests or concurrency needs requests to be counted: write balancing: {level: Request}, with a protocol other than TCP, or metric: connections"
// +kubebuilder:validation:XValidation:rule="!has(self.traffic) || !$hasOfRevisions",message="image, template and the other fields that describe pods cannot be set beside traffic, because the service has no pods of its own: write them in the manifests of the revisions, or leave traffic out"
// +kubebuilder:validation:XValidation:rule="!has(self.traffic) || self.traffic.map(t, has(t.percent) ? t.percent : 0).sum() == 100",message="the percentages of traffic must add up to 100: change them"
// +kubebuilder:validation:XValidation:rule="!has(self.traffic) || !has(self.balancing) || !has(self.balancing.level) || self.balancing.level == 'Request'",message="traffic needs balancing.level: Request: write it, or leave balancing out"
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerClass) || !has(self.service) || !has(self.service.loadBalancerClass) || self.service.loadBalancerClass == self.loadBalancerClass",message="loadBalancerClass and service.loadBalancerClass differ: write one of the two"
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerClass) || !has(self.service) || !has(self.service.type) || self.service.type == 'LoadBalancer'",message="loadBalancerClass needs service.type: LoadBalancer: leave one of the two out"
// +kubebuilder:validation:XValidation:rule="!has(self.sticky) || has(self.traffic)",message="sticky needs traffic: leave it out, or write traffic"
type WangellServiceSpec struct {
	// Image is the container image, as a registry reference. Required unless template or traffic is set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image,omitempty"`
	// TargetPort is the TCP port on which the container listens, 1-65535. Default: port.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="want a port from 1 to 65535: write targetPort: 8080, for example"
	TargetPort int32 `json:"targetPort,omitempty"`
	// Port is the TCP port of the service address, 1-65535. Required unless ports is set.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="want a port from 1 to 65535: write port: 80, for example"
	Port int32 `json:"port,omitempty"`
	// AppProtocol tells gateways and ingress controllers what clients speak at port: it is the appProtocol of the port in
	// the Kubernetes Service and its EndpointSlice, such as http, kubernetes.io/h2c or kubernetes.io/ws. The gate itself
	// looks at no protocol, and balancing.protocol is independent of it. Kubernetes only.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	AppProtocol string `json:"appProtocol,omitempty"`
	// Ports are the ports of a service with several, at most 16, all at the service address. They sleep and wake
	// together. They replace port, targetPort, appProtocol, hostPort and
	// hostAddress.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Ports []ServicePort `json:"ports,omitempty"`
	// HostPort is a TCP port of the machine itself at which the service is reached as well, 1-65535. One machine only.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="want a port from 1 to 65535: write hostPort: 8080, for example"
	HostPort int32 `json:"hostPort,omitempty"`
	// HostAddress is the IPv4 address of the machine at which hostPort is opened: at 127.0.0.1, only the machine itself
	// reaches the port. Default: all of its addresses. One machine only.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$')",message="want an IPv4 address of the machine: write hostAddress: 127.0.0.1, for example, or leave it out"
	HostAddress string `json:"hostAddress,omitempty"`
	// IdleTimeout is the number of seconds without a packet after which the service sleeps, 1-31536000. Default: 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 31536000",message="want seconds from 1 to 31536000: write idleTimeout: 300, for example"
	IdleTimeout int64 `json:"idleTimeout,omitempty"`
	// Sleep says when the service sleeps, and when a pod runs ahead of its first client. Default: idleTimeout alone.
	// +optional
	Sleep *Sleep `json:"sleep,omitempty"`

	// Address is the service address (IPv4). Default: a free one, from the range of the instance or from an address
	// pool.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$') && !self.matches('^(127|22[4-9]|23[0-9])[.]|^169[.]254[.]|^0[.]0[.]0[.]0$|^255[.]255[.]255[.]255$')",message="want an IPv4 address that clients can use: write address: 10.46.100.5, for example, or leave it out"
	Address string `json:"address,omitempty"`
	// ImagePullPolicy is Always, IfNotPresent or Never. Default: IfNotPresent for every tag, including latest, because
	// a client would have to wait for the registry.
	// +optional
	// +kubebuilder:validation:Enum=IfNotPresent;Always;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePull says when the images are pulled, and by how many nodes. Default: two nodes, or maxReplicas if that is
	// more, pull them as soon as the service exists.
	// +optional
	ImagePull *ImagePull `json:"imagePull,omitempty"`
	// Command replaces the image's entrypoint.
	// +optional
	Command []string `json:"command,omitempty"`
	// Args replaces the image's command.
	// +optional
	Args []string `json:"args,omitempty"`
	// WorkingDir replaces the image's working directory.
	// +optional
	WorkingDir string `json:"workingDir,omitempty"`
	// Env is added to the image's environment.
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// EnvFrom adds all keys of ConfigMaps and Secrets to the environment; variables of env take precedence.
	// +optional
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`
	// Resources sets requests and limits of cpu and memory; on Kubernetes, of any resource.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`
	// Volumes are of kind persistent, hostPath, emptyDir, secret or configMap; on Kubernetes, of any kind but persistent.
	// +optional
	Volumes []Volume `json:"volumes,omitempty"`
	// VolumeMounts mounts volumes into the container's file system.
	// +optional
	VolumeMounts []corev1.VolumeMount `json:"volumeMounts,omitempty"`
	// ImageVolumes says what becomes of the folders that the images declare as volumes (VOLUME) and at which nothing is
	// mounted: Keep makes each a persistent volume of the service, with the image's files to begin with; Discard has each
	// pod begin with the image's files. Default: Keep if at most one pod runs at a time; on Kubernetes always Discard.
	// +optional
	// +kubebuilder:validation:Enum=Keep;Discard
	ImageVolumes ImageVolumes `json:"imageVolumes,omitempty"`
	// Layer says what the containers may write into their own layers. Default: as much as they like.
	// +optional
	Layer *Layer `json:"layer,omitempty"`
	// SecurityContext supports runAsUser, runAsGroup, readOnlyRootFilesystem, capabilities, privileged and
	// allowPrivilegeEscalation; on Kubernetes, every field.
	// +optional
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`
	// Init makes a small program the first process of the container. It starts the service's program, passes signals on
	// to it, and reaps orphans. On Kubernetes the pod shares its process namespace instead. Default: false.
	// +optional
	Init *bool `json:"init,omitempty"`
	// Containers run beside the main container, which is described by the fields above, in the same pod: they share its
	// network and its volumes.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	Containers []Container `json:"containers,omitempty"`
	// InitContainers run one after another before the main container starts. One that fails is started again.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	InitContainers []Container `json:"initContainers,omitempty"`

	// ReadyWhen is Listen, so that a pod gets connections as soon as its socket listens, or Probe, so that it gets them
	// once its readinessProbe succeeds as well, and no new ones while that fails. Default: Listen.
	// +optional
	// +kubebuilder:validation:Enum=Listen;Probe
	ReadyWhen ReadyWhen `json:"readyWhen,omitempty"`
	// ReadinessProbe is that of a Kubernetes container: one of httpGet, tcpSocket, exec and grpc, with
	// initialDelaySeconds, periodSeconds, timeoutSeconds, successThreshold and failureThreshold. It needs readyWhen:
	// Probe, whose probe it is. With a template, write it in the main container instead.
	// +optional
	ReadinessProbe *corev1.Probe `json:"readinessProbe,omitempty"`
	// StartupProbe is that of a Kubernetes container: the readinessProbe begins once it has succeeded. A pod that fails it
	// failureThreshold times is ended; on Kubernetes, kubelet restarts its container. It needs readyWhen: Probe. With a
	// template, write it in the main container instead.
	// +optional
	StartupProbe *corev1.Probe `json:"startupProbe,omitempty"`

	// WakeTimeout is the number of seconds after which a wake fails and parked clients are refused, 1-3600. Default: 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="want seconds from 1 to 3600: write wakeTimeout: 60, for example"
	WakeTimeout int64 `json:"wakeTimeout,omitempty"`
	// StopSignal is the signal that asks the program to end: a name such as SIGQUIT, QUIT or SIGRTMIN+3, or a number from
	// 1 to 64 as text, except 32 and 33. On Kubernetes it needs the feature gate ContainerStopSignals. Default: the
	// image's STOPSIGNAL, or SIGTERM.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:XValidation:rule="self.matches('^([1-9]|[12][0-9]|3[0-14-9]|[45][0-9]|6[0-4]|(SIG)?(HUP|INT|QUIT|ILL|TRAP|ABRT|IOT|BUS|FPE|KILL|USR1|SEGV|USR2|PIPE|ALRM|TERM|STKFLT|CHLD|CONT|STOP|TSTP|TTIN|TTOU|URG|XCPU|XFSZ|VTALRM|PROF|WINCH|IO|POLL|PWR|SYS|RTMIN([+]([1-9]|1[0-5]))?|RTMAX(-([1-9]|1[0-4]))?))$')",message="want the name or number of a signal: write stopSignal: SIGQUIT, for example"
	StopSignal string `json:"stopSignal,omitempty"`
	// TerminationGracePeriodSeconds is the number of seconds between the stop signal and SIGKILL, 0-3600. Default: 30,
	// or the template's value.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 3600",message="want seconds from 0 to 3600: write terminationGracePeriodSeconds: 30, for example"
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// MaxParked is the largest number of connection requests (SYNs) kept while the service wakes, 1-4096. Default: 1024.
	// +optional
	// +kubebuilder:default=1024
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 4096",message="want a number from 1 to 4096: write maxParked: 1024, for example"
	MaxParked int32 `json:"maxParked,omitempty"`
	// MaxParkedPerSource is the largest number of parked requests per client address, 1-4096. Default: 512, or
	// maxParked if that is less.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 4096",message="want a number from 1 to 4096: write maxParkedPerSource: 512, for example"
	MaxParkedPerSource int32 `json:"maxParkedPerSource,omitempty"`

	// MinReplicas is the number of pods that run even while the service is unused, 0-32. Default: 0, the service sleeps.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 32",message="want a number from 0 to 32: write minReplicas: 0, for example"
	MinReplicas int32 `json:"minReplicas,omitempty"`
	// MaxReplicas is the largest number of pods, 1-32. Default: 1; with scaling, 10 or minReplicas, whichever is more.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 32",message="want a number from 1 to 32: write maxReplicas: 3, for example"
	MaxReplicas int32 `json:"maxReplicas,omitempty"`
	// Scaling makes the number of pods follow the load. Default: one pod while the service is used.
	// +optional
	Scaling *Scaling `json:"scaling,omitempty"`
	// SessionAffinity is None, so that a new connection goes to the pod with the fewest open ones, or ClientIP, so that
	// a client address keeps its pod. Default: None.
	// +optional
	// +kubebuilder:validation:Enum=None;ClientIP
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`
	// Balancing refines the choice of a pod.
	// +optional
	Balancing *Balancing `json:"balancing,omitempty"`
	// Traffic splits the requests of the service among other services of its namespace, its revisions, each of which
	// wakes, scales and sleeps on its own. The service itself has no pods then, and its balancing.level is Request.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=revision
	Traffic []Revision `json:"traffic,omitempty"`
	// Sticky keeps a client on one revision while the percentages of traffic do not change. Default: each request is on
	// its own.
	// +optional
	Sticky *Sticky `json:"sticky,omitempty"`
	// Retries is the number of other pods tried for a connection request after one that refused it or did not answer,
	// 0-8. Default: 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 8",message="want a number from 0 to 8: write retries: 2, for example"
	Retries *int32 `json:"retries,omitempty"`
	// WakeProof says when clients that wake the service must prove that they are where they claim to be: Auto, beyond
	// the node's budgets of wakes; Always; or Never, which drops connection requests beyond the budgets. Default: Auto.
	// +optional
	// +kubebuilder:validation:Enum=Auto;Always;Never
	WakeProof WakeProof `json:"wakeProof,omitempty"`
	// AllowFrom lists the IPv4 networks whose clients may connect, such as 10.0.0.0/8; connection requests from elsewhere
	// are dropped and wake nothing. On Kubernetes, the NetworkPolicies for the pods must allow a client as well. Default:
	// all clients.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=18
	// +kubebuilder:validation:items:Pattern=`^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$`
	AllowFrom []string `json:"allowFrom,omitempty"`
	// DrainTimeout is the number of seconds for which a pod that is removed keeps its open connections, 0-86400.
	// Default: 30.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 86400",message="want seconds from 0 to 86400: write drainTimeout: 30, for example"
	DrainTimeout *int64 `json:"drainTimeout,omitempty"`
	// UpdateStrategy is RollingUpdate, so that a new pod may start while old ones still run, or Recreate, so that no pod
	// starts before the one before it is known to be gone; then maxReplicas is 1. Default: Recreate if maxReplicas is 1
	// and the pod mounts, not readOnly, a volume that another pod can write to as well (a hostPath, a network file system,
	// a PersistentVolumeClaim that asks neither for ReadWriteMany nor for ReadOnlyMany alone); else RollingUpdate.
	// +optional
	// +kubebuilder:validation:Enum=Recreate;RollingUpdate
	UpdateStrategy UpdateStrategy `json:"updateStrategy,omitempty"`

	// Replicas is the number of pods wanted now. kubectl scale, a HorizontalPodAutoscaler or KEDA set it, and Wangell
	// sets it when the service falls asleep (0) and wakes. Kubernetes only.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 32",message="want a number from 0 to 32: write replicas: 1, for example, or leave it out"
	Replicas *int32 `json:"replicas,omitempty"`
	// LoadBalancerClass selects the load balancer that assigns the service address: wangell.loutres.me/gate is Wangell
	// with its own pools. service.loadBalancerClass means the same. Default: wangell.loutres.me/gate. Kubernetes only.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
	// Service shapes the Kubernetes Service of the service: its type, and annotations and labels for others, such as
	// external-dns. What others write into that Service stays. Kubernetes only.
	// +optional
	Service *ServiceObject `json:"service,omitempty"`
	// ServiceAccountName is the service account of the pods. Default: default. Kubernetes only.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
	// AutomountServiceAccountToken mounts the service account's token into the pods. Default: false, because the volume
	// slows every start by some 300 ms. Kubernetes only.
	// +optional
	AutomountServiceAccountToken *bool `json:"automountServiceAccountToken,omitempty"`
	// EnableServiceLinks adds the addresses of all Services of the namespace to the environment. Default: false, because
	// many Services slow every start. Kubernetes only.
	// +optional
	EnableServiceLinks *bool `json:"enableServiceLinks,omitempty"`
	// Template describes the whole pod, instead of image and the other fields of the container. The container with the
	// name of the service, or else the first one, must listen on targetPort. Defaults are those of Kubernetes, except
	// for automountServiceAccountToken and enableServiceLinks (false) and imagePullPolicy (IfNotPresent). Kubernetes
	// only.
	// +optional
	// +kubebuilder:validation:XValidation:rule="has(self.spec) && size(self.spec.containers) > 0",message="spec.containers must have at least one container: write spec: {containers: [{name: app, image: registry.example.com/app:v1}]}, for example"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.hostNetwork) || !self.spec.hostNetwork",message="spec.hostNetwork cannot work, because the gate needs pods with their own network: remove it"
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Always'",message="spec.restartPolicy must be Always in a Deployment: write restartPolicy: Always, or leave it out"
	Template *corev1.PodTemplateSpec `json:"template,omitempty"`

	// Config is the data of the Secrets and ConfigMaps to which the spec refers, on one machine. It is set by the reader
	// of manifests and is not part of the document.
	Config *ConfigData `json:"-"`
}

// WakeProof says when clients that wake a service must prove that they are where they claim to be.
type WakeProof string

// The values of WangellServiceSpec.WakeProof.
const (
	WakeProofAuto   WakeProof = "Auto"   // beyond the node's budgets of wakes
	WakeProofAlways WakeProof = "Always" // always
	WakeProofNever  WakeProof = "Never"  // never; connection requests beyond the budgets are dropped
)

// ReadyWhen says when a pod gets connections.
type ReadyWhen string

// When a pod is ready.
const (
	ReadyWhenListens ReadyWhen = "Listen" // its socket listens
	ReadyWhenProbed  ReadyWhen = "Probe"  // its socket listens, and its readinessProbe succeeds
)

// UpdateStrategy says whether pods of a service may run at the same time.
type UpdateStrategy string

// The update strategies.
const (
	UpdateRecreate UpdateStrategy = "Recreate"      // no pod starts before the one before it is gone
	UpdateRolling  UpdateStrategy = "RollingUpdate" // a new pod may start while old ones run
)
