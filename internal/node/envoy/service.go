// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/netip"
	"slices"
	"time"
)

// Protocol is the protocol of a service's clients.
type Protocol uint8

// The protocols.
const (
	Auto  Protocol = iota // by the first bytes of a connection
	HTTP1                 // HTTP/1.0 and HTTP/1.1
	HTTP2                 // HTTP/2 with prior knowledge
	TCP                   // anything; each connection gets a pod
)

// FirstPort and LastPort are the ports at which Envoy listens for the clients of services. They are below those of its
// own connections, except for those from clients' addresses.
const (
	FirstPort = 10000
	LastPort  = 32000
)

// Service is a service whose requests Envoy balances.
type Service struct {
	// Name is "namespace/name", unique.
	Name string
	// Addr is the service address. Envoy connects to it while no pod serves.
	Addr netip.AddrPort
	// Port is where Envoy listens for the service's clients, at its own address: FirstPort to LastPort.
	Port     uint16
	Protocol Protocol
	// ClientIdle is how long a client may keep a connection without a request.
	ClientIdle time.Duration
	// Silence is how long a request or a TCP connection may be silent in both directions.
	Silence time.Duration
	// MaxPerPod is the largest number of requests to a pod at a time, 0 for no limit. With one of Envoy's threads for each
	// core, each thread but the first may exceed it by one.
	MaxPerPod uint32
	// Warmup is the time in which the share of a new pod grows to that of the others, 0 for none.
	Warmup time.Duration
	// Transparent makes pods see the address of the client, in Envoys that can do that: see Proxy.Transparent.
	Transparent bool
	// TrustedProxies are the networks of proxies whose word about their clients is kept: see clientHeaders.
	TrustedProxies []netip.Prefix
	// Pods are where the pods that take new requests listen, in any order.
	Pods []netip.AddrPort
	// Traffic routes requests to other services, which Envoy gets as well, instead of pods. Such a service has no
	// Pods.
	Traffic Traffic
}

// sameListener reports whether two services differ at most in their pods and in the routes to their revisions.
func (s Service) sameListener(o Service) bool {
	return s.Name == o.Name && s.Addr == o.Addr && s.Port == o.Port && s.Protocol == o.Protocol &&
		s.ClientIdle == o.ClientIdle && s.Silence == o.Silence && s.MaxPerPod == o.MaxPerPod && s.Warmup == o.Warmup &&
		s.Transparent == o.Transparent && slices.Equal(s.TrustedProxies, o.TrustedProxies) &&
		s.Traffic.Empty() == o.Traffic.Empty() &&
		(s.routed() || s.Traffic.equal(o.Traffic))
}

// routed reports whether only a route resource of the service depends on its revisions.
func (s Service) routed() bool { return s.Protocol == HTTP1 || s.Protocol == HTTP2 }
