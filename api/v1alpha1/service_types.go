// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

// ServiceObject shapes the Kubernetes Service of a service.
//
// +kubebuilder:validation:XValidation:rule="!has(self.loadBalancerClass) || !has(self.type) || self.type == 'LoadBalancer'",message="loadBalancerClass needs type: LoadBalancer: leave one of the two out"
type ServiceObject struct {
	// Type is LoadBalancer, or ClusterIP for namespaces whose quota allows no load balancers: the Service then has no
	// address for clients outside of the cluster, and no node answers ARP for the service address. Default:
	// LoadBalancer.
	// +optional
	// +kubebuilder:validation:Enum=LoadBalancer;ClusterIP
	Type corev1.ServiceType `json:"type,omitempty"`
	// Annotations are added to those of the Service. Keys of wangell.loutres.me are Wangell's own.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Annotations map[string]string `json:"annotations,omitempty"`
	// Labels are added to those of the Service. Keys of wangell.loutres.me and app.kubernetes.io/managed-by are Wangell's
	// own.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`
	// LoadBalancerClass selects the load balancer that assigns the service address. Default: spec.loadBalancerClass, or
	// wangell.loutres.me/gate, which is Wangell with its own pools.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
	// IPFamilyPolicy is that of the Service: SingleStack, PreferDualStack or RequireDualStack. The service address is
	// IPv4 in any case: with two stacks, the Service has a cluster IP of IPv6 as well, at which nothing answers clients
	// of the cluster. Default: SingleStack.
	// +optional
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	IPFamilyPolicy corev1.IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`
}

// ServiceType returns the type of the service's Kubernetes Service.
func (s *WangellServiceSpec) ServiceType() corev1.ServiceType {
	if s.Service != nil && s.Service.Type != "" {
		return s.Service.Type
	}
	return corev1.ServiceTypeLoadBalancer
}

// Class returns the class of the load balancer that assigns the service address. A Service of another type than
// LoadBalancer has its address from Wangell.
func (s *WangellServiceSpec) Class() string {
	switch {
	case s.ServiceType() != corev1.ServiceTypeLoadBalancer:
	case s.Service != nil && s.Service.LoadBalancerClass != "":
		return s.Service.LoadBalancerClass
	case s.LoadBalancerClass != "":
		return s.LoadBalancerClass
	}
	return LoadBalancerClass
}
