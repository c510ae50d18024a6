// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateCluster tells what cannot work in s on Kubernetes, as Validate does for one machine. What the API server checks
// anyway when the Deployment is made (volumes, resources, the pod template, ...) is left to it. It holds for a service
// that came by the API too, where an older CustomResourceDefinition may have let something pass.
func ValidateCluster(s *WangellService) ValidationErrors {
	var errs ValidationErrors
	if len(validation.IsDNS1035Label(s.Name)) > 0 {
		errs.add(namePath, "write a name such as "+toLabel(strings.TrimLeft(toLabel(s.Name), "0123456789-")),
			"want at most 63 of a-z, 0-9 and -, a letter first and a letter or digit last, for the Kubernetes Service of the same name; got %q", s.Name)
	}
	spec := &s.Spec
	errs.common(spec)
	if spec.Template != nil {
		errs.template(spec)
	} else {
		errs.image(spec.Image)
	}
	return errs
}

// common checks what is the same on one machine and on Kubernetes.
func (e *ValidationErrors) common(s *WangellServiceSpec) {
	if s.Port == 0 {
		e.add(specPath.Child("port"), "write the port that clients use, for example port: 80", "missing")
	}
	e.inRange("port", int64(s.Port))
	e.inRange("targetPort", int64(s.TargetPort))
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
	e.oneOf(specPath.Child("imagePullPolicy"), string(s.ImagePullPolicy),
		string(corev1.PullIfNotPresent), string(corev1.PullAlways), string(corev1.PullNever))
	e.oneOf(specPath.Child("sessionAffinity"), string(s.SessionAffinity), string(corev1.ServiceAffinityNone), string(corev1.ServiceAffinityClientIP))
	if s.Balancing != nil {
		e.oneOf(specPath.Child("balancing").Child("localityPreference"), string(s.Balancing.LocalityPreference), string(LocalityNone), string(LocalityLocal))
	}
	e.scaling(s.Scaling)
	if most := maxReplicas(s); s.MinReplicas > most {
		e.add(specPath.Child("maxReplicas"), fmt.Sprintf("write maxReplicas: %d", s.MinReplicas), "%d is less than minReplicas, %d", most, s.MinReplicas)
	}
}

// maxReplicas is spec.maxReplicas, or what Default would make it.
func maxReplicas(s *WangellServiceSpec) int32 {
	switch {
	case s.MaxReplicas != 0:
		return s.MaxReplicas
	case s.Scaling != nil:
		return max(DefaultMaxReplicasScaling, s.MinReplicas)
	}
	return DefaultMaxReplicas
}

func pointerInRange[T int32 | int64](e *ValidationErrors, p *field.Path, v *T) {
	if v != nil {
		e.pathInRange(p, int64(*v))
	}
}

func (e *ValidationErrors) scaling(s *Scaling) {
	if s == nil {
		return
	}
	p := specPath.Child("scaling")
	e.oneOf(p.Child("metric"), string(s.Metric), string(MetricConnections), string(MetricRate), string(MetricCPU), string(MetricMemory))
	if s.Target == 0 {
		e.add(p.Child("target"), "write what one pod shall have of the metric, for example target: 50", "missing")
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

// template checks a spec that gives a whole pod.
func (e *ValidationErrors) template(s *WangellServiceSpec) {
	p := specPath.Child("template")
	for name, given := range map[string]bool{
		"image": s.Image != "", "command": s.Command != nil, "args": s.Args != nil, "workingDir": s.WorkingDir != "",
		"env": s.Env != nil, "resources": s.Resources.Limits != nil || s.Resources.Requests != nil || s.Resources.Claims != nil,
		"volumes": s.Volumes != nil, "volumeMounts": s.VolumeMounts != nil, "securityContext": s.SecurityContext != nil,
		"imagePullPolicy": s.ImagePullPolicy != "", "serviceAccountName": s.ServiceAccountName != "",
		"automountServiceAccountToken": s.AutomountServiceAccountToken != nil, "enableServiceLinks": s.EnableServiceLinks != nil,
	} {
		if given {
			e.add(specPath.Child(name), "write it in spec.template.spec, or leave spec.template out", "is given beside template, which is the whole pod")
		}
	}
	pod := &s.Template.Spec
	if len(pod.Containers) == 0 {
		e.add(p.Child("spec").Child("containers"), "write containers: [{name: app, image: registry.example.com/app:v1}], for example", "missing")
	}
	if pod.HostNetwork {
		e.add(p.Child("spec").Child("hostNetwork"), "remove it", "cannot work: the gate reaches a pod by a network of its own")
	}
	if pod.RestartPolicy != "" && pod.RestartPolicy != corev1.RestartPolicyAlways {
		e.add(p.Child("spec").Child("restartPolicy"), "write restartPolicy: Always, or leave it out", "want Always, as a Deployment does, got %q", pod.RestartPolicy)
	}
}

// clusterOnly refuses what one machine cannot do.
func (e *ValidationErrors) clusterOnly(s *WangellServiceSpec) {
	const remove = "remove it"
	for _, f := range []struct {
		name  string
		given bool
		why   string
		fix   string
	}{
		{"template", s.Template != nil, "there are no pods with several containers", "write image, command, env, volumes, ... directly below spec"},
		{"loadBalancerClass", s.LoadBalancerClass != "", "there is no load balancer but Wangell", remove},
		{"replicas", s.Replicas != nil, "nobody scales by it", "write minReplicas: for pods that always run, or remove it"},
		{"serviceAccountName", s.ServiceAccountName != "", "there are no service accounts", remove},
		{"automountServiceAccountToken", isTrue(s.AutomountServiceAccountToken), "there are no service accounts", remove},
		{"enableServiceLinks", isTrue(s.EnableServiceLinks), "there are no Services", remove},
	} {
		if f.given {
			e.add(specPath.Child(f.name), f.fix, "is not available on one machine: %s", f.why)
		}
	}
}
