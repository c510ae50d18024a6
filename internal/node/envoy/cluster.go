// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/netip"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	aggregate "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	lbcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	leastrequest "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	upstream "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	xdstype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// podConnectTimeout is how long a pod may take to accept a connection. Then the request goes to another one.
	podConnectTimeout = 2 * time.Second
	// wakeConnectTimeout is longer than any wakeTimeout: the gate ends the wait, with an RST.
	wakeConnectTimeout = time.Hour + 10*time.Second
	// poolIdle is how long a connection to a pod without a request is kept. Many servers close such connections after
	// five seconds or more. A request at that moment is lost unless it can be repeated.
	poolIdle = 4 * time.Second
	// bufferLimit is the most of a request or answer that is buffered, in bytes, before its sender has to wait. A request
	// with a longer body is not repeated.
	bufferLimit = 128 << 10
	// activeRequestBias is the power to which the number of a pod's open requests counts against its weight. With 2, a pod
	// that takes ten times as long as the others gets about a quarter of their requests.
	activeRequestBias = 2
	// unlimited is the value for limits that the gate or Envoy's overload manager enforces.
	unlimited = 1 << 30
	// maxWaiting is the largest number of connections that wait for a pod; the largest maxParked.
	maxWaiting = 4096
	// streamWindow and connWindow are the flow-control windows of HTTP/2 streams and connections, in bytes.
	streamWindow, connWindow = 256 << 10, 1 << 20
)

// Ranges of local ports, so that a pod never sees two connections with the same addresses and ports: one that came
// through the gate, and one to the pod's own address. Those of upgraded connections are apart so that the node of the
// pod can tell them from requests: see CarriesRequest.
var (
	wakePorts     = [2]uint32{32768, 36863}
	upgradedPorts = [2]uint32{36864, 45055}
	podPorts      = [2]uint32{45056, 60999}
)

// Ranges of local ports of connections from clients' addresses, for the same purpose. Few clients use such ports
// themselves: the gate refuses those that the client happens to use. The kernel heeds them if they are within the range
// of Envoy's network namespace (ip_local_port_range), as podnet.Network.ReceiveAll makes it.
var (
	wakePortsOfClients     = [2]uint32{1024, 3071}
	upgradedPortsOfClients = [2]uint32{3072, 4095}
	podPortsOfClients      = [2]uint32{4096, FirstPort - 1}
)

// CarriesRequest reports whether an open connection to a pod, from this port of Envoy, may carry a request. One that a
// client has upgraded, to a WebSocket for example, carries none: it is in use only while bytes pass.
func CarriesRequest(port uint16) bool {
	in := func(r [2]uint32) bool { return r[0] <= uint32(port) && uint32(port) <= r[1] }
	return !in(upgradedPorts) && !in(upgradedPortsOfClients)
}

// ipLocalPortRange is IP_LOCAL_PORT_RANGE of ip(7), since Linux 6.3.
const ipLocalPortRange = 51

// podsOf and wakeOf name the clusters of a service's pods, and of its address. tunnelsOf names that of its address for
// upgraded connections. upgradesOf names the cluster to which requests for them are routed.
func podsOf(name string) string     { return name + "/pods" }
func wakeOf(name string) string     { return name + "/wake" }
func tunnelsOf(name string) string  { return name + "/tunnels" }
func upgradesOf(name string) string { return name + "/upgrades" }

// clustersOf names all clusters of a service.
func clustersOf(name string) []string {
	return []string{name, podsOf(name), wakeOf(name), tunnelsOf(name), upgradesOf(name)}
}

// clusters returns the clusters of a service: those of the pods and the service address, and those that choose among
// them, for requests and for upgraded connections.
func clusters(s *Service) []*cluster.Cluster {
	return []*cluster.Cluster{
		firstOf(s.Name, podsOf(s.Name), wakeOf(s.Name)), firstOf(upgradesOf(s.Name), waysOfUpgrades(s)...),
		podCluster(s), addressCluster(s, wakeOf(s.Name), wakePorts, wakePortsOfClients, maxWaiting),
		addressCluster(s, tunnelsOf(s.Name), upgradedPorts, upgradedPortsOfClients, unlimited),
	}
}

// waysOfUpgrades returns the clusters for upgraded connections. They go to the service address, where the gate gives
// each a pod and counts its bytes. If no port is left for that, they go to the pods as requests do. So they do if a pod
// may have only so many requests, because one that is upgraded counts.
func waysOfUpgrades(s *Service) []string {
	if s.MaxPerPod > 0 {
		return []string{podsOf(s.Name), wakeOf(s.Name)}
	}
	return []string{tunnelsOf(s.Name), podsOf(s.Name)}
}

// firstOf is a cluster that stands for the first one of others with an endpoint that has not failed a request.
func firstOf(name string, others ...string) *cluster.Cluster {
	return &cluster.Cluster{
		Name: name, ConnectTimeout: durationpb.New(podConnectTimeout), LbPolicy: cluster.Cluster_CLUSTER_PROVIDED,
		CircuitBreakers: breakers(unlimited), // its limit of retries counts
		ClusterDiscoveryType: &cluster.Cluster_ClusterType{ClusterType: &cluster.Cluster_CustomClusterType{
			Name: "envoy.clusters.aggregate", TypedConfig: pack(&aggregate.ClusterConfig{Clusters: others}),
		}},
	}
}

// podCluster is the cluster of the service's pods. They take turns, and each open request lengthens a pod's way to its
// next turn: see weight.
func podCluster(s *Service) *cluster.Cluster {
	policy := &leastrequest.LeastRequest{ActiveRequestBias: &core.RuntimeDouble{
		DefaultValue: activeRequestBias, RuntimeKey: "wangell.active_request_bias",
	}}
	if s.Warmup > 0 {
		policy.SlowStartConfig = &lbcommon.SlowStartConfig{SlowStartWindow: durationpb.New(s.Warmup)}
	}
	ports := podPorts
	if s.Transparent {
		ports = podPortsOfClients
	}
	c := common(s, podsOf(s.Name), podConnectTimeout, ports, unlimited)
	c.ClusterDiscoveryType = &cluster.Cluster_Type{Type: cluster.Cluster_EDS}
	c.EdsClusterConfig = &cluster.Cluster_EdsClusterConfig{EdsConfig: ads()}
	c.LoadBalancingPolicy = &cluster.LoadBalancingPolicy{Policies: []*cluster.LoadBalancingPolicy_Policy{{
		TypedExtensionConfig: &core.TypedExtensionConfig{
			Name: "envoy.load_balancing_policies.least_request", TypedConfig: pack(policy),
		},
	}}}
	// A connection has one request at a time. Each of Envoy's threads may have one connection in any case.
	if s.MaxPerPod > 0 {
		c.CircuitBreakers.PerHostThresholds = []*cluster.CircuitBreakers_Thresholds{{
			MaxConnections: wrapperspb.UInt32(s.MaxPerPod),
		}}
	}
	return c
}

// addressCluster is a cluster of the service address: for when no pod serves, or for upgraded connections. A connection
// is for one request, so that the next one goes to a pod that the balancer has chosen.
func addressCluster(s *Service, name string, ports, ofClients [2]uint32, most uint32) *cluster.Cluster {
	if s.Transparent {
		ports = ofClients
	}
	c := common(s, name, wakeConnectTimeout, ports, most)
	c.ClusterDiscoveryType = &cluster.Cluster_Type{Type: cluster.Cluster_STATIC}
	c.LoadAssignment = assignment(c.Name, []netip.AddrPort{s.Addr})
	return c
}

// common returns the part that the clusters of pods and of the service address share.
func common(s *Service, name string, connect time.Duration, ports [2]uint32, most uint32) *cluster.Cluster {
	return &cluster.Cluster{
		Name: name, ConnectTimeout: durationpb.New(connect),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		CommonLbConfig: &cluster.Cluster_CommonLbConfig{
			HealthyPanicThreshold: &xdstype.Percent{Value: 0}, // a draining pod gets no request, even if there is no other
		},
		CircuitBreakers: breakers(most),
		UpstreamBindConfig: &core.BindConfig{SocketOptions: []*core.SocketOption{{
			Description: "IP_LOCAL_PORT_RANGE", Level: unix.IPPROTO_IP, Name: ipLocalPortRange,
			Value: &core.SocketOption_IntValue{IntValue: int64(ports[0]) | int64(ports[1])<<16},
			State: core.SocketOption_STATE_PREBIND,
		}}},
		TypedExtensionProtocolOptions: protocolOptions(s, name != podsOf(s.Name)),
	}
}

// breakers limit connections, and requests that wait for one.
func breakers(most uint32) *cluster.CircuitBreakers {
	return &cluster.CircuitBreakers{Thresholds: []*cluster.CircuitBreakers_Thresholds{{
		MaxConnections: wrapperspb.UInt32(most), MaxPendingRequests: wrapperspb.UInt32(most),
		MaxRequests: wrapperspb.UInt32(unlimited), MaxRetries: wrapperspb.UInt32(unlimited),
	}}}
}

// protocolOptions select the HTTP version to pods: the client's, unless the service sets one.
func protocolOptions(s *Service, single bool) packed {
	if s.Protocol == TCP {
		return nil
	}
	o := &upstream.HttpProtocolOptions{
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(poolIdle)},
	}
	if single {
		o.CommonHttpProtocolOptions.MaxRequestsPerConnection = wrapperspb.UInt32(1)
	}
	http1 := &core.Http1ProtocolOptions{EnableTrailers: true}
	http2 := http2Options()
	if s.MaxPerPod > 0 {
		http2.MaxConcurrentStreams = wrapperspb.UInt32(1)
	}
	type explicit = upstream.HttpProtocolOptions_ExplicitHttpConfig
	switch s.Protocol {
	case HTTP1:
		o.UpstreamProtocolOptions = &upstream.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &explicit{
			ProtocolConfig: &upstream.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: http1},
		}}
	case HTTP2:
		o.UpstreamProtocolOptions = &upstream.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &explicit{
			ProtocolConfig: &upstream.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: http2},
		}}
	default:
		o.UpstreamProtocolOptions = &upstream.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &upstream.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions: http1, Http2ProtocolOptions: http2,
			},
		}
	}
	return packed{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(o)}
}

// http2Options are the options of HTTP/2 on both sides. Envoy's defaults limit headers, frames without content and
// early resets (envoy: docs/configuration/best_practices/edge).
func http2Options() *core.Http2ProtocolOptions {
	return &core.Http2ProtocolOptions{
		AllowConnect: true, InitialStreamWindowSize: wrapperspb.UInt32(streamWindow),
		InitialConnectionWindowSize: wrapperspb.UInt32(connWindow),
	}
}

// weight is the weight of a cluster's i-th endpoint. With weights that are all the same, Envoy chooses at random
// among the pods with the fewest open requests, and the requests of few clients are uneven by chance. With others it
// takes turns, by weights that it divides by the number of open requests, plus one (envoy:
// arch_overview/upstream/load_balancing, weighted least request).
func weight(i int) uint32 { return 1000 + uint32(i%2) }

// assignment lists the endpoints of a cluster.
func assignment(name string, at []netip.AddrPort) *endpoint.ClusterLoadAssignment {
	a := &endpoint.ClusterLoadAssignment{ClusterName: name}
	if len(at) == 0 {
		return a
	}
	all := &endpoint.LocalityLbEndpoints{Locality: &core.Locality{}, LoadBalancingWeight: wrapperspb.UInt32(1)}
	for i, p := range at {
		all.LbEndpoints = append(all.LbEndpoints, &endpoint.LbEndpoint{
			LoadBalancingWeight: wrapperspb.UInt32(weight(i)),
			HostIdentifier:      &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: address(p)}},
		})
	}
	a.Endpoints = []*endpoint.LocalityLbEndpoints{all}
	return a
}
