// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// LocalityPreference says whether pods on some nodes are preferred.
type LocalityPreference string

// The values of Balancing.LocalityPreference.
const (
	LocalityNone  LocalityPreference = "None"  // pods on all nodes are equal
	LocalityLocal LocalityPreference = "Local" // pods on the node that receives the client's packets are preferred
)

// BalancingLevel says what a pod is chosen for.
type BalancingLevel string

// The values of Balancing.Level.
const (
	LevelConnection BalancingLevel = "Connection" // each connection
	LevelRequest    BalancingLevel = "Request"    // each HTTP request
)

// BalancingProtocol is the protocol of a service's clients.
type BalancingProtocol string

// The values of Balancing.Protocol.
const (
	ProtocolAuto  BalancingProtocol = "Auto"  // what the first bytes of a connection say: HTTP/1.1, HTTP/2 or other
	ProtocolHTTP1 BalancingProtocol = "HTTP1" // HTTP/1.1
	ProtocolHTTP2 BalancingProtocol = "HTTP2" // HTTP/2 with prior knowledge, such as gRPC
	ProtocolTCP   BalancingProtocol = "TCP"   // anything; a pod is chosen for each connection
)

// ClientAddress says how pods learn the addresses of their clients.
type ClientAddress string

// The values of Balancing.ClientAddress.
const (
	ClientAddressHeader      ClientAddress = "Header"      // by the headers X-Forwarded-For and Forwarded
	ClientAddressTransparent ClientAddress = "Transparent" // as the source of connections as well
)

// Balancing refines the choice of a pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.level) && self.level == 'Request' || !(has(self.protocol) || has(self.clientIdleTimeout) || has(self.maxRequestsPerPod) || has(self.warmup) || has(self.clientAddress) || has(self.trustedProxies))",message="protocol, clientIdleTimeout, maxRequestsPerPod, warmup, clientAddress and trustedProxies need level: Request: add it, or leave them out"
type Balancing struct {
	// Level is Connection, so that each connection gets a pod, or Request, so that each HTTP request gets one: with few
	// clients that keep their connections, the load is even, too. With Request a proxy, Envoy, is in the path. Default:
	// Connection.
	// +optional
	// +kubebuilder:validation:Enum=Connection;Request
	Level BalancingLevel `json:"level,omitempty"`
	// Protocol is the protocol of the clients: HTTP1, HTTP2 (with prior knowledge, such as gRPC), TCP for anything
	// else, or Auto to find out from the first bytes that a client sends. If it sends nothing for a second, its
	// connection is TCP. Default, with level Request: Auto.
	// +optional
	// +kubebuilder:validation:Enum=Auto;HTTP1;HTTP2;TCP
	Protocol BalancingProtocol `json:"protocol,omitempty"`
	// ClientIdleTimeout is the number of seconds after which a connection of a client without a request is closed,
	// 1-86400. Default, with level Request: 3600.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 86400",message="want seconds from 1 to 86400: write clientIdleTimeout: 3600, for example"
	ClientIdleTimeout int64 `json:"clientIdleTimeout,omitempty"`
	// MaxRequestsPerPod is the largest number of requests that a node sends to a pod at a time, 1-10000; more wait. Each
	// core of the node but the first may exceed it by one. Default: no limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 10000",message="want a number from 1 to 10000: write maxRequestsPerPod: 100, for example"
	MaxRequestsPerPod int32 `json:"maxRequestsPerPod,omitempty"`
	// Warmup is the number of seconds in which the share of a new pod grows to that of the others, 1-3600. Default: a pod
	// has its full share at once.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 3600",message="want seconds from 1 to 3600: write warmup: 30, for example"
	Warmup int64 `json:"warmup,omitempty"`
	// ClientAddress is Header, so that pods read the address of a client in X-Forwarded-For and Forwarded and see
	// that of Envoy, or Transparent, so that connections come from the client's address as they do without Envoy, at
	// another port; each client then has its own connections to pods. Transparent is for one machine only. Default,
	// with level Request: Header.
	// +optional
	// +kubebuilder:validation:Enum=Header;Transparent
	ClientAddress ClientAddress `json:"clientAddress,omitempty"`
	// TrustedProxies lists the IPv4 networks of proxies in front of the service, such as one that ends TLS: what they
	// write of their clients in X-Forwarded-For, -Proto, -Host, -Port and -Prefix and in Forwarded is kept and appended
	// to. What other clients write there is removed, as it may be forged. With level Request. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	TrustedProxies []string `json:"trustedProxies,omitempty"`

	// LocalityPreference is None, or Local to prefer pods on the node that receives the client's packets. Default: None.
	// +optional
	// +kubebuilder:default=None
	// +kubebuilder:validation:Enum=None;Local
	LocalityPreference LocalityPreference `json:"localityPreference,omitempty"`
}

// DefaultClientIdleTimeout is the default of spec.balancing.clientIdleTimeout, in seconds.
const DefaultClientIdleTimeout = 3600
