// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// appProtocol checks the field appProtocol at a path.
func (e *ValidationErrors) appProtocol(at *field.Path, protocol string) {
	if protocol != "" && len(validation.IsQualifiedName(protocol)) > 0 {
		e.add(at.Child("appProtocol"), "write appProtocol: kubernetes.io/h2c, for example",
			"want the name of a protocol, with or without a domain, got %q", protocol)
	}
}

// serviceObject checks what a spec wants of the Kubernetes Service.
func (e *ValidationErrors) serviceObject(spec *WangellServiceSpec) {
	e.appProtocol(specPath, spec.AppProtocol)
	s := spec.Service
	if s == nil {
		return
	}
	p := specPath.Child("service")
	e.oneOf(p.Child("type"), string(s.Type), string(corev1.ServiceTypeLoadBalancer), string(corev1.ServiceTypeClusterIP))
	e.oneOf(p.Child("ipFamilyPolicy"), string(s.IPFamilyPolicy), string(corev1.IPFamilyPolicySingleStack),
		string(corev1.IPFamilyPolicyPreferDualStack), string(corev1.IPFamilyPolicyRequireDualStack))
	for _, c := range []struct {
		path  *field.Path
		class string
	}{{specPath.Child("loadBalancerClass"), spec.LoadBalancerClass}, {p.Child("loadBalancerClass"), s.LoadBalancerClass}} {
		if c.class != "" && spec.ServiceType() != corev1.ServiceTypeLoadBalancer {
			e.add(c.path, "write spec.service.type: LoadBalancer, or remove the class",
				"needs a Service of type LoadBalancer, but spec.service.type is %s", s.Type)
		}
	}
	if s.LoadBalancerClass != "" && spec.LoadBalancerClass != "" && s.LoadBalancerClass != spec.LoadBalancerClass {
		e.add(p.Child("loadBalancerClass"), "write one of the two", "%s differs from spec.loadBalancerClass, %s",
			s.LoadBalancerClass, spec.LoadBalancerClass)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Annotations)) {
		e.ownKey(p.Child("annotations").Key(k), k)
	}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		at := p.Child("labels").Key(k)
		e.ownKey(at, k)
		if len(validation.IsValidLabelValue(s.Labels[k])) > 0 {
			e.add(at, "write at most 63 letters, digits, -, _ and ., a letter or digit first and last",
				"%q is not the value of a label", s.Labels[k])
		}
	}
}

// ownKey checks the key of an annotation or label that is the user's own.
func (e *ValidationErrors) ownKey(p *field.Path, key string) {
	domain, _, _ := strings.Cut(key, "/")
	switch {
	case len(validation.IsQualifiedName(strings.ToLower(key))) > 0:
		e.add(p, "write a key such as example.com/team", "%q is not a key of labels and annotations", key)
	case domain == Group || strings.HasSuffix(domain, "."+Group) || key == "app.kubernetes.io/managed-by":
		e.add(p, "remove it", "%s is Wangell's own", key)
	}
}
