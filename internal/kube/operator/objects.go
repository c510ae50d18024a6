// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime/kube"
)

// Names in the operator's objects.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "wangell"
	// madeFrom is the annotation with the hash of an object's input.
	madeFrom = v1alpha1.Group + "/made-from"
	// lastGood is the annotation of a Deployment with the spec that it was made from; see putLastGood.
	lastGood = v1alpha1.Group + "/last-good-spec"
)

// maxLastGood is the size in bytes up to which a spec is kept for the next leader: all annotations of an object
// together may have 256 KiB. A longer one is not kept.
const maxLastGood = 128 << 10

// ownerOf returns the owner reference by which an object is deleted with its service.
func ownerOf(s *v1alpha1.WangellService) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind, Name: s.Name, UID: s.UID,
		Controller: &yes}
}

// meta returns the metadata of an object of a service.
func meta(s *v1alpha1.WangellService) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: s.Namespace, Name: s.Name, OwnerReferences: []metav1.OwnerReference{ownerOf(s)},
		Labels:      map[string]string{v1alpha1.LabelService: s.Name, managedByLabel: managedBy},
		Annotations: map[string]string{},
	}
}

// selector returns the labels that select the pods of a service.
func selector(s *v1alpha1.WangellService) map[string]string {
	return map[string]string{v1alpha1.LabelService: s.Name}
}

// DeploymentOf returns the Deployment of a service, whose spec has its defaults, with an update strategy. With lazy,
// its pods start before their image is here. It is paused and has no replicas: internal/runtime/kube writes these two
// fields.
func DeploymentOf(s *v1alpha1.WangellService, strategy v1alpha1.UpdateStrategy, lazy bool) *appsv1.Deployment {
	none, revisions := int32(0), int32(2)
	one, zero := intstr.FromInt32(1), intstr.FromInt32(0)
	d := &appsv1.Deployment{
		ObjectMeta: meta(s),
		Spec: appsv1.DeploymentSpec{
			Replicas: &none, RevisionHistoryLimit: &revisions,
			Selector: &metav1.LabelSelector{MatchLabels: selector(s)},
			Template: podTemplateOf(s),
			// A new pod starts before an old one ends: a service with one pod has none to lose.
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &zero},
			},
		},
	}
	if strategy == v1alpha1.UpdateRecreate {
		d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	}
	if lazy {
		pullLazily(&d.Spec.Template)
	}
	d.Annotations[madeFrom] = digest(d.Spec)
	d.Spec.Paused = true // at rest: internal/runtime/kube resumes it when it has pods
	d.Spec.ProgressDeadlineSeconds = new(int32(kube.NoProgressDeadline))
	if text := specText(s); len(text) <= maxLastGood {
		d.Annotations[lastGood] = text
	}
	return d
}

// specText encodes a spec to be kept for the next leader, without the number of replicas.
func specText(s *v1alpha1.WangellService) string {
	spec := s.Spec.DeepCopy()
	spec.Replicas = nil
	text, err := json.Marshal(spec)
	if err != nil {
		panic("operator: " + err.Error()) // types of Kubernetes can be encoded
	}
	return string(text)
}

// podTemplateOf returns the template of a service's pods. Its defaults are those that start quickest: a token volume
// delays a start by some 300 ms, service links delay it the more Services there are, and a pull of an image that is on
// the node asks a registry while clients wait.
func podTemplateOf(s *v1alpha1.WangellService) corev1.PodTemplateSpec {
	spec := &s.Spec
	var t corev1.PodTemplateSpec
	if spec.Template != nil {
		t = *spec.Template.DeepCopy()
	} else {
		main := spec.KubernetesMain(s.Name)
		main.Ports = containerPorts(spec.PortList())
		t.Spec = corev1.PodSpec{
			Containers: []corev1.Container{main},
			Volumes:    spec.PodVolumes(), ServiceAccountName: spec.ServiceAccountName,
			AutomountServiceAccountToken: spec.AutomountServiceAccountToken, EnableServiceLinks: spec.EnableServiceLinks,
			// The pod's own first process (pause) reaps orphans then, and the program is not PID 1.
			ShareProcessNamespace: spec.Init,
		}
		for i := range spec.Containers {
			t.Spec.Containers = append(t.Spec.Containers, spec.Containers[i].Kubernetes())
		}
		for i := range spec.InitContainers {
			t.Spec.InitContainers = append(t.Spec.InitContainers, spec.InitContainers[i].Kubernetes())
		}
		setStopSignal(&t.Spec, spec.StopSignal)
		setLayer(&t.Spec, spec)
	}
	// The metadata of a user's template must not override the labels by which pods are assigned to services.
	t.Name, t.GenerateName, t.Namespace = "", "", ""
	t.Labels = with(t.Labels, v1alpha1.LabelService, s.Name)
	t.Annotations = with(t.Annotations, v1alpha1.AnnotationContainer, s.MainContainer())
	t.Labels[v1alpha1.LabelSpecHash] = v1alpha1.Hash(spec)
	t.Annotations[v1alpha1.AnnotationTargetPort] = v1alpha1.TargetText(spec.PortList())
	no := false
	setPointer(&t.Spec.AutomountServiceAccountToken, &no)
	setPointer(&t.Spec.EnableServiceLinks, &no)
	setPointer(&t.Spec.TerminationGracePeriodSeconds, spec.TerminationGracePeriodSeconds)
	for c := range v1alpha1.Containers(&t.Spec) {
		if c.ImagePullPolicy == "" {
			c.ImagePullPolicy = corev1.PullIfNotPresent
		}
	}
	giveNotice(t.Spec.Containers, min(leaveNotice, *t.Spec.TerminationGracePeriodSeconds/2))
	return t
}

// containerPorts returns the ports of the container that serves ports of a service, each once.
func containerPorts(ports []v1alpha1.Port) (out []corev1.ContainerPort) {
	for _, p := range ports {
		port := corev1.ContainerPort{ContainerPort: p.Target, Protocol: corev1.ProtocolTCP}
		if !slices.Contains(out, port) {
			out = append(out, port)
		}
	}
	return out
}

// servicePorts returns the ports of a Service. Its endpoint is the service address, so each is its own target.
func servicePorts(ports []v1alpha1.Port) (out []corev1.ServicePort) {
	for _, p := range ports {
		out = append(out, corev1.ServicePort{
			Name: p.Name, Protocol: corev1.ProtocolTCP, Port: p.Number, TargetPort: intstr.FromInt32(p.Number),
			AppProtocol: appProtocol(p),
		})
	}
	return out
}

// endpointPorts returns the ports of the EndpointSlice of a service.
func endpointPorts(ports []v1alpha1.Port) (out []discoveryv1.EndpointPort) {
	for _, p := range ports {
		tcp := corev1.ProtocolTCP
		out = append(out, discoveryv1.EndpointPort{
			Name: &p.Name, Protocol: &tcp, Port: &p.Number, AppProtocol: appProtocol(p),
		})
	}
	return out
}

// appProtocol returns the protocol of the application of a port; nil if the manifest has none.
func appProtocol(p v1alpha1.Port) *string {
	if p.AppProtocol == "" {
		return nil
	}
	return &p.AppProtocol
}

// pullLazily makes the pods of a template start before their image is complete. The RuntimeClass selects containerd's
// snapshotter for that, and the annotation selects it for kubelet's pulls.
func pullLazily(t *corev1.PodTemplateSpec) {
	t.Spec.RuntimeClassName = new(v1alpha1.LazyRuntime)
	t.Annotations = with(t.Annotations, v1alpha1.AnnotationHandler, v1alpha1.LazyRuntime)
}

// setStopSignal sets the signal that ends the first container. The API server accepts it only for a pod that names its
// operating system, and drops it without the feature gate ContainerStopSignals (KEP-4960).
func setStopSignal(pod *corev1.PodSpec, text string) {
	n, err := v1alpha1.ParseSignal(text)
	if err != nil {
		return
	}
	name := corev1.Signal(v1alpha1.SignalName(n))
	pod.OS = &corev1.PodOS{Name: corev1.Linux}
	pod.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: &name}
}

// leaveNotice is the number of seconds that a pod runs between its deletion and its SIGTERM, at most half of its grace
// period, which includes them.
//
// When a pod is deleted (by kubectl, a rollout, a drained node, an eviction), its kubelet and the controller learn of
// it at the same time. A server that stops listening at its SIGTERM refuses the SYNs that gates still send it; they
// give these to another pod. But it also resets connections that its kernel has accepted and the program has not. No
// gate can repeat those: their clients take them for established. With this notice, gates stop sending connections
// some milliseconds after the deletion, and the SIGTERM comes later. If the leading controller is deleted at the same
// time, the notice is long enough for its successor. It delays nothing else: the next pod does not wait for it.
const leaveNotice = 3

// giveNotice delays the SIGTERM of all containers by this time, because they may need each other. A container with a
// preStop hook keeps its own.
func giveNotice(containers []corev1.Container, seconds int64) {
	if seconds <= 0 {
		return
	}
	for i := range containers {
		c := &containers[i]
		if c.Lifecycle == nil {
			c.Lifecycle = &corev1.Lifecycle{}
		}
		if c.Lifecycle.PreStop == nil {
			c.Lifecycle.PreStop = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}
		}
	}
}

// sliceOf returns the EndpointSlice of a service: the service address, always ready.
func sliceOf(s *v1alpha1.WangellService, addr netip.Addr) *discoveryv1.EndpointSlice {
	yes, no := true, false
	e := &discoveryv1.EndpointSlice{
		ObjectMeta: meta(s), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes,
				Terminating: &no},
		}},
		Ports: endpointPorts(s.Spec.PortList()),
	}
	e.Labels[discoveryv1.LabelServiceName] = s.Name
	e.Labels[discoveryv1.LabelManagedBy] = managedBy + "." + v1alpha1.Group
	e.Annotations[madeFrom] = digest([]any{e.Endpoints, e.Ports})
	return e
}

// digest returns a hash of a value's encoding.
func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("operator: " + err.Error()) // types of Kubernetes can be encoded
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
