// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns everything in s that cannot work on one machine; ValidateCluster is its counterpart for Kubernetes.
// It accepts a manifest before or after Default: an optional field that is zero counts as left out. Status is ignored.
func Validate(s *WangellService) ValidationErrors {
	var errs ValidationErrors
	if s.Name == "" {
		errs.add(namePath, "write a name for the service, for example name: hello", "missing")
	} else {
		errs.label(namePath, s.Name)
	}
	if s.Namespace != "" {
		errs.label(namespacePath, s.Namespace)
	}
	errs.spec(&s.Spec)
	errs.containers(s.Name, &s.Spec, false)
	errs.readiness(s.Name, &s.Spec)
	return errs
}

// ValidateCluster returns everything in s that cannot work on Kubernetes, as Validate does for one machine. It leaves
// out what the API server checks when the Deployment is created, such as volumes, resources and the pod template.
// Services from the API are validated too, because they may be older than the rules of the CustomResourceDefinition.
func ValidateCluster(s *WangellService) ValidationErrors {
	var errs ValidationErrors
	if why := s.Annotations[annotationUnreadable]; why != "" {
		errs.add(specPath, "correct it", "cannot be read: %s", why)
		return errs
	}
	if len(validation.IsDNS1035Label(s.Name)) > 0 {
		errs.add(namePath, "write a name such as "+toLabel(strings.TrimLeft(toLabel(s.Name), "0123456789-")),
			"want at most 63 of a-z, 0-9 and -, a letter first and a letter or digit last, "+
				"as for the Kubernetes Service of the same name; got %q", s.Name)
	}
	spec := &s.Spec
	errs.common(spec)
	errs.readiness(s.Name, spec)
	errs.noHostPort(specPath, spec.HostPort, spec.HostAddress)
	for i, p := range spec.Ports {
		errs.noHostPort(specPath.Child("ports").Index(i), p.HostPort, p.HostAddress)
	}
	if b := spec.Balancing; b != nil && b.ClientAddress == ClientAddressTransparent {
		errs.add(specPath.Child("balancing", "clientAddress"), "write clientAddress: Header, or leave it out",
			"Transparent is not available on Kubernetes, where pods answer past Envoy's node: only on one machine")
	}
	if spec.Snapshotter() != "" {
		errs.add(specPath.Child("layer", "snapshotter"), "remove it; a RuntimeClass of the template can have one",
			"is not available on Kubernetes: only on one machine")
	}
	errs.freezing(spec)
	if p := spec.ImagePull; p != nil && p.Optimise {
		errs.add(specPath.Child("imagePull", "optimise"), "remove it, and name the result of wangell image optimise",
			"is not available on Kubernetes: only on one machine")
	}
	if t := spec.Template; t != nil && t.Spec.RuntimeClassName != nil && spec.PullsLazily() {
		errs.add(specPath.Child("imagePull", "mode"), "write mode: Full, or leave runtimeClassName out",
			"is Lazy, which needs the RuntimeClass %s, but the template has %s", LazyRuntime, *t.Spec.RuntimeClassName)
	}
	if spec.PreparedPods() > 0 {
		errs.add(specPath.Child("sleep", "prepared"), "remove it", "is not available on Kubernetes: only on one machine")
	}
	errs.persistentOnCluster(spec.Volumes)
	errs.imageVolumesOnCluster(spec)
	switch {
	case spec.SplitsTraffic():
	case spec.Template != nil:
		errs.template(spec)
	default:
		errs.image(spec.Image)
		errs.containers(s.Name, spec, true)
	}
	return errs
}

func (e *ValidationErrors) spec(s *WangellServiceSpec) {
	e.clusterOnly(s)
	for i, p := range s.Ports {
		if p.AppProtocol != "" {
			e.add(specPath.Child("ports").Index(i).Child("appProtocol"), "remove it", "is not available on one machine")
		}
	}
	e.freezing(s)
	if s.Template == nil && !s.SplitsTraffic() {
		e.image(s.Image)
	}
	e.common(s)

	e.volumes(s.Volumes)
	main := s.Main("")
	e.container(specPath, &main, s.Volumes)
}

// common checks the fields that mean the same on one machine and on Kubernetes.
func (e *ValidationErrors) common(s *WangellServiceSpec) {
	e.ports(s)
	e.layer(s.Layer)
	e.inRange("idleTimeout", s.IdleTimeout)
	e.inRange("wakeTimeout", s.WakeTimeout)
	e.inRange("maxParked", int64(s.MaxParked))
	e.inRange("maxParkedPerSource", int64(s.MaxParkedPerSource))
	e.inRange("minReplicas", int64(s.MinReplicas))
	e.inRange("maxReplicas", int64(s.MaxReplicas))
	pointerInRange(e, specPath.Child("terminationGracePeriodSeconds"), s.TerminationGracePeriodSeconds)
	pointerInRange(e, specPath.Child("retries"), s.Retries)
	pointerInRange(e, specPath.Child("drainTimeout"), s.DrainTimeout)
	pointerInRange(e, specPath.Child("replicas"), s.Replicas)
	e.address(s.Address)
	e.stopSignal(s.StopSignal)
	e.oneOf(specPath.Child("imagePullPolicy"), string(s.ImagePullPolicy),
		string(corev1.PullIfNotPresent), string(corev1.PullAlways), string(corev1.PullNever))
	e.imagePull(s)
	e.imageVolumes(s)
	e.oneOf(specPath.Child("sessionAffinity"), string(s.SessionAffinity),
		string(corev1.ServiceAffinityNone), string(corev1.ServiceAffinityClientIP))
	e.oneOf(specPath.Child("wakeProof"), string(s.WakeProof),
		string(WakeProofAuto), string(WakeProofAlways), string(WakeProofNever))
	e.allowFrom(s.AllowFrom)
	e.balancing(s)
	e.traffic(s)
	e.oneOf(specPath.Child("updateStrategy"), string(s.UpdateStrategy), string(UpdateRecreate), string(UpdateRolling))
	if most := mostPods(s); s.UpdateStrategy == UpdateRecreate && most > 1 {
		fix := "maxReplicas: 1"
		if s.MinReplicas > 1 {
			fix += " and minReplicas: 1"
		}
		e.add(specPath.Child("updateStrategy"), "write "+fix+", or updateStrategy: RollingUpdate",
			"Recreate allows one pod, but the service may have %d", most)
	}
	e.scaling(s)
	e.sleep(s)
	e.serviceObject(s)
	if most := maxReplicas(s); s.MinReplicas > most {
		e.add(specPath.Child("maxReplicas"), fmt.Sprintf("write maxReplicas: %d", s.MinReplicas),
			"%d is less than minReplicas, %d", most, s.MinReplicas)
	}
}

func (e *ValidationErrors) scaling(spec *WangellServiceSpec) {
	s := spec.Scaling
	if s == nil {
		return
	}
	p := specPath.Child("scaling")
	e.oneOf(p.Child("metric"), string(s.Metric), string(MetricConnections), string(MetricRate), string(MetricCPU),
		string(MetricMemory), string(MetricRequests), string(MetricConcurrency))
	switch {
	case !s.Metric.OfRequests():
	case !spec.BalancesRequests():
		e.add(p.Child("metric"), "write balancing: {level: Request}, or metric: connections",
			"%s needs balancing.level: Request, which counts requests", s.Metric)
	case spec.Balancing.Protocol == ProtocolTCP:
		e.add(p.Child("metric"), "write protocol: Auto, or metric: connections",
			"%s needs requests, which balancing.protocol: TCP has not", s.Metric)
	}
	if s.Target == 0 {
		e.add(p.Child("target"), "write the wanted value per pod, for example target: 50", "missing")
	}
	for name, v := range map[string]int64{
		"target": int64(s.Target), "outInterval": s.OutInterval, "inInterval": s.InInterval,
		"maxStep": int64(s.MaxStep), "burstPerPod": int64(s.BurstPerPod),
	} {
		if v != 0 {
			e.pathInRange(p.Child(name), v)
		}
	}
	pointerInRange(e, p.Child("outStabilization"), s.OutStabilization)
	pointerInRange(e, p.Child("inStabilization"), s.InStabilization)
}

// template checks a spec that describes a whole pod.
func (e *ValidationErrors) template(s *WangellServiceSpec) {
	p := specPath.Child("template")
	for _, name := range s.fieldsSet(inTemplate) {
		e.add(specPath.Child(name), "write it in spec.template.spec, or leave spec.template out",
			"cannot be set beside template, which describes the whole pod")
	}
	pod := &s.Template.Spec
	if len(pod.Containers) == 0 {
		e.add(p.Child("spec").Child("containers"),
			"write containers: [{name: app, image: registry.example.com/app:v1}], for example", "missing")
	}
	if pod.HostNetwork {
		e.add(p.Child("spec").Child("hostNetwork"), "remove it",
			"cannot work, because the gate needs pods with their own network")
	}
	if pod.RestartPolicy != "" && pod.RestartPolicy != corev1.RestartPolicyAlways {
		e.add(p.Child("spec").Child("restartPolicy"), "write restartPolicy: Always, or leave it out",
			"want Always, as in every Deployment, got %q", pod.RestartPolicy)
	}
}

// noNeed says why one machine has no use for a field, and what to write instead; empty to remove it.
var noNeed = map[string]struct{ why, fix string }{
	"template": {"its fields are those of spec",
		"write image, command, env, volumes, ... directly below spec, and further containers as spec.containers"},
	"loadBalancerClass": {"Wangell is the only load balancer", ""},
	"service":           {"there are no Services", ""},
	"appProtocol":       {"there are no gateways that read it", ""},
	"replicas": {"no autoscaler sets it",
		"write minReplicas: for pods that always run, or remove it"},
	"serviceAccountName":           {"there are no service accounts", ""},
	"automountServiceAccountToken": {"there are no service accounts", ""},
	"enableServiceLinks":           {"there are no Services", ""},
}

// clusterOnly refuses fields that only Kubernetes supports. One that is false asks for nothing.
func (e *ValidationErrors) clusterOnly(s *WangellServiceSpec) {
	const remove = "remove it"
	for _, f := range specFields {
		if f.uses&onKubernetes == 0 || isEmpty(f.of(s)) {
			continue
		}
		n := noNeed[f.name]
		setDefault(&n.why, "Kubernetes only")
		setDefault(&n.fix, remove)
		e.add(specPath.Child(f.name), n.fix, "is not available on one machine: %s", n.why)
	}
	if s.ImagePull != nil && s.ImagePull.Nodes != nil {
		e.add(specPath.Child("imagePull", "nodes"), remove, "is not available on one machine: there is one node")
	}
}

// noHostPort refuses hostPort and hostAddress, fields at a path.
func (e *ValidationErrors) noHostPort(at *field.Path, port int32, address string) {
	if port != 0 {
		e.add(at.Child("hostPort"),
			"remove it; with controller.nodePorts of the chart, each service has a port of every node",
			"is not available on Kubernetes: only on one machine")
	}
	if address != "" {
		e.add(at.Child("hostAddress"), "remove it", "is not available on Kubernetes: only on one machine")
	}
}

// hostAddress checks the address of the machine at which a hostPort is opened; both are fields at a path.
func (e *ValidationErrors) hostAddress(at *field.Path, address string, port int32) {
	if address == "" {
		return
	}
	p := at.Child("hostAddress")
	const fix = "write hostAddress: 127.0.0.1, for the machine alone, another IPv4 address that it has, or leave it out " +
		"for all"
	ip, err := netip.ParseAddr(address)
	switch {
	case err != nil || !ip.Is4():
		e.add(p, fix, "want an IPv4 address of the machine, got %q", address)
	case ip.IsUnspecified() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		e.add(p, fix, "%s is not the address of one machine: it is unspecified, multicast or broadcast", ip)
	case port == 0:
		e.add(p, "write hostPort: 8080, for example, or remove hostAddress", "opens no port without hostPort")
	}
}

func (e *ValidationErrors) address(address string) {
	if address == "" {
		return
	}
	p := specPath.Child("address")
	const fix = "write an address from the range of the instance, for example address: 10.46.100.5, or leave it out"
	ip, err := netip.ParseAddr(address)
	switch {
	case err != nil || !ip.Is4():
		e.add(p, fix, "want an IPv4 address, got %q", address)
	case ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() ||
		ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		e.add(p, fix, "%s cannot be a service address: it is unspecified, loopback, multicast or broadcast", ip)
	}
}
