// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ServicePort is a port of a service that has several.
type ServicePort struct {
	// Name names the port in the Service, in messages and in metrics, and is unique among the service's ports: at most
	// 15 of a-z, 0-9 and -, with at least one letter (RFC 6335, section 5.1). Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && self.matches('[a-z]') && !self.contains('--')",message="want a port name such as http: at most 15 of a-z, 0-9 and -, with at least one letter"
	Name string `json:"name"`
	// Port is the TCP port of the service address, 1-65535. Required.
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="want a port from 1 to 65535: write port: 80, for example"
	Port int32 `json:"port"`
	// TargetPort is the TCP port on which the pods listen: a number, 1-65535, or the name of a port of a container in
	// template. Default: port.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.size() >= 1 && self.size() <= 15 : self >= 1 && self <= 65535",message="want a port from 1 to 65535, or the name of a container's port: write targetPort: 8080, for example"
	TargetPort intstr.IntOrString `json:"targetPort,omitzero"`
	// Protocol is TCP. Default: TCP.
	// +optional
	// +kubebuilder:validation:Enum=TCP
	Protocol corev1.Protocol `json:"protocol,omitempty"`
	// AppProtocol tells gateways and ingress controllers what clients speak at the port, such as http or
	// kubernetes.io/h2c. The gate itself looks at no protocol. Kubernetes only.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	AppProtocol string `json:"appProtocol,omitempty"`
	// HostPort is a TCP port of the machine itself at which this port is reached as well, 1-65535. One machine only.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="want a port from 1 to 65535: write hostPort: 8080, for example"
	HostPort int32 `json:"hostPort,omitempty"`
	// HostAddress is the IPv4 address of the machine at which hostPort is opened. Default: all of its addresses. One
	// machine only.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$')",message="want an IPv4 address of the machine: write hostAddress: 127.0.0.1, for example, or leave it out"
	HostAddress string `json:"hostAddress,omitempty"`
}
