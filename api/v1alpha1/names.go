// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Names of the group, version and kind, as written in a manifest.
const (
	Group      = "wangell.loutres.me"
	Version    = "v1alpha1"
	Kind       = "WangellService"
	APIVersion = Group + "/" + Version
)

// Labels and annotations of a service's pods on Kubernetes. Daemons recognize Wangell's pods by them.
const (
	// LabelService holds the name of the service, which is in the pod's namespace.
	LabelService = Group + "/service"
	// LabelSpecHash holds the Hash of the spec that the pod was created from.
	LabelSpecHash = Group + "/spec-hash"
	// AnnotationContainer names the main container of the pod, which listens on the target port.
	AnnotationContainer = Group + "/container"
	// AnnotationTargetPort holds the ports on which the pod listens, as TargetText writes them.
	AnnotationTargetPort = Group + "/target-port"
)

// FinalizerRevision keeps a WangellService that gets requests of others, and with it the objects that it owns, from its
// deletion until its pods have answered the requests that they have. The controller removes it.
const FinalizerRevision = Group + "/revision"

// LabelPulls marks a pod that only has its image pulled, and holds the name of the service, which is in the pod's
// namespace. Such a pod starts no container, and is not one of the service's pods.
const LabelPulls = Group + "/pulls-for"

// LoadBalancerClass is the class of Services whose addresses Wangell assigns and announces itself.
const LoadBalancerClass = Group + "/gate"

// LazyRuntime is the name of the RuntimeClass, and of its handler in container runtimes, whose pods start before their
// image is here.
const LazyRuntime = "wangell-lazy"

// AnnotationHandler is the annotation of pods by which kubelet tells containerd the handler of their RuntimeClass when
// it pulls their images, without the feature gate RuntimeClassInImageCriApi (KEP-4216).
const AnnotationHandler = "io.containerd.cri.runtime-handler"

// LabelLazy is the label of nodes that are set up for LazyRuntime, with the value "true".
const LabelLazy = Group + "/lazy"

// LabelCertificate is the label of the leader's Lease with the fingerprint of its certificate. It is a label because
// leader election writes labels in the same request as the holder of the Lease.
const LabelCertificate = Group + "/certificate"
