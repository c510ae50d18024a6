// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/netip"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	overload "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	connections "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	heap "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	upstream "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Proxy identifies an Envoy, from its bootstrap.
type Proxy struct {
	// Addr is its address, on which it listens for the clients of services.
	Addr netip.Addr
	// Netns is the path of its network namespace; empty if Pod is set.
	Netns string
	// Pod is the UID of its pod, by which the node's container runtime finds the network namespace; empty on one
	// machine.
	Pod string
	// Transparent is set if it can connect to pods from the addresses of clients: it may set IP_TRANSPARENT (ip(7)),
	// and all packets that reach its network namespace are delivered to its sockets.
	Transparent bool
	// Created is when its network was made; the zero value if Pod is set. Of several Envoys, the youngest serves.
	Created time.Time
}

// The keys of a Proxy in the metadata of Envoy's node.
const (
	addrKey        = "address"
	netnsKey       = "netns"
	podKey         = "pod"
	createdKey     = "created" // RFC 3339
	transparentKey = "transparent"
)

// BootstrapConfig is what an Envoy is started with.
type BootstrapConfig struct {
	Proxy Proxy
	// Socket is the unix socket of the Server.
	Socket string
	// Admin is the unix socket of Envoy's administration interface; empty for none.
	Admin string
	// MaxHeap is the memory that Envoy may allocate, in bytes. Near it, Envoy gives memory back and closes connections
	// that are kept; beyond it, new requests get 503.
	MaxHeap uint64
	// MaxConnections is the largest number of connections of clients.
	MaxConnections int64
	// HealthPort is the port at which Envoy answers every HTTP request with 200, to show that it does not hang; 0 for
	// none.
	HealthPort uint16
}

// refreshInterval is the interval at which Envoy checks its memory.
const refreshInterval = 250 * time.Millisecond

// Bootstrap returns the JSON of Envoy's bootstrap.
func Bootstrap(c BootstrapConfig) ([]byte, error) {
	about := map[string]any{addrKey: c.Proxy.Addr.String()}
	created := ""
	if !c.Proxy.Created.IsZero() {
		created = c.Proxy.Created.Format(time.RFC3339Nano)
	}
	transparent := ""
	if c.Proxy.Transparent {
		transparent = "true"
	}
	for key, value := range map[string]string{
		netnsKey: c.Proxy.Netns, podKey: c.Proxy.Pod, createdKey: created,
		transparentKey: transparent,
	} {
		if value != "" {
			about[key] = value
		}
	}
	metadata, err := structpb.NewStruct(about)
	if err != nil {
		return nil, fmt.Errorf("bootstrap of Envoy: %w", err)
	}
	b := &bootstrap.Bootstrap{
		Node: &core.Node{Id: "wangell", Cluster: "wangell", Metadata: metadata},
		DynamicResources: &bootstrap.Bootstrap_DynamicResources{
			LdsConfig: ads(), CdsConfig: ads(),
			AdsConfig: &core.ApiConfigSource{
				ApiType: core.ApiConfigSource_DELTA_GRPC, TransportApiVersion: core.ApiVersion_V3,
				GrpcServices: []*core.GrpcService{{TargetSpecifier: &core.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &core.GrpcService_EnvoyGrpc{ClusterName: xdsCluster},
				}}},
			},
		},
		StaticResources: &bootstrap.Bootstrap_StaticResources{Clusters: []*cluster.Cluster{serverCluster(c.Socket)}},
		OverloadManager: limits(c),
	}
	reportRequests(b)
	if c.HealthPort != 0 {
		b.StaticResources.Listeners = []*listener.Listener{healthListener(c.HealthPort)}
	}
	if c.Admin != "" {
		b.Admin = &bootstrap.Admin{Address: pipe(c.Admin, 0o600)}
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("bootstrap of Envoy: %w", err)
	}
	return data, nil
}

// healthListener answers every HTTP request with 200.
func healthListener(port uint16) *listener.Listener {
	return &listener.Listener{
		Name: "health", Address: address(netip.AddrPortFrom(netip.IPv4Unspecified(), port)),
		IgnoreGlobalConnLimit: true,
		FilterChains: []*listener.FilterChain{{Filters: []*listener.Filter{
			filter("envoy.filters.network.http_connection_manager", &hcm.HttpConnectionManager{
				StatPrefix: "health",
				RouteSpecifier: &hcm.HttpConnectionManager_RouteConfig{RouteConfig: &route.RouteConfiguration{
					VirtualHosts: []*route.VirtualHost{{Name: "health", Domains: []string{"*"}, Routes: []*route.Route{{
						Match:  &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}},
						Action: &route.Route_DirectResponse{DirectResponse: &route.DirectResponseAction{Status: 200}},
					}}}},
				}},
				HttpFilters: []*hcm.HttpFilter{{
					Name:       "envoy.filters.http.router",
					ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: pack(&router.Router{})},
				}},
			}),
		}}},
	}
}

// serverCluster leads to the Server.
func serverCluster(socket string) *cluster.Cluster {
	return &cluster.Cluster{
		Name: xdsCluster, ConnectTimeout: durationpb.New(podConnectTimeout),
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_STATIC},
		LoadAssignment: &endpoint.ClusterLoadAssignment{ClusterName: xdsCluster, Endpoints: []*endpoint.LocalityLbEndpoints{{
			LbEndpoints: []*endpoint.LbEndpoint{{HostIdentifier: &endpoint.LbEndpoint_Endpoint{
				Endpoint: &endpoint.Endpoint{Address: pipe(socket, 0)},
			}}},
		}}},
		TypedExtensionProtocolOptions: packed{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(&upstream.HttpProtocolOptions{
				UpstreamProtocolOptions: &upstream.HttpProtocolOptions_ExplicitHttpConfig_{
					ExplicitHttpConfig: &upstream.HttpProtocolOptions_ExplicitHttpConfig{
						ProtocolConfig: &upstream.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
							Http2ProtocolOptions: &core.Http2ProtocolOptions{},
						},
					},
				},
			}),
		},
	}
}

// limits are those of all services together (envoy: docs/configuration/operations/overload_manager).
func limits(c BootstrapConfig) *overload.OverloadManager {
	const heapMonitor = "envoy.resource_monitors.fixed_heap"
	above := func(part float64) []*overload.Trigger {
		return []*overload.Trigger{{Name: heapMonitor, TriggerOneof: &overload.Trigger_Threshold{
			Threshold: &overload.ThresholdTrigger{Value: part},
		}}}
	}
	o := &overload.OverloadManager{RefreshInterval: durationpb.New(refreshInterval)}
	if c.MaxHeap > 0 {
		o.ResourceMonitors = append(o.ResourceMonitors, &overload.ResourceMonitor{
			Name: heapMonitor, ConfigType: &overload.ResourceMonitor_TypedConfig{
				TypedConfig: pack(&heap.FixedHeapConfig{MaxHeapSizeBytes: c.MaxHeap}),
			},
		})
		o.Actions = []*overload.OverloadAction{
			{Name: "envoy.overload_actions.shrink_heap", Triggers: above(0.85)},
			{Name: "envoy.overload_actions.disable_http_keepalive", Triggers: above(0.92)},
			{Name: "envoy.overload_actions.stop_accepting_requests", Triggers: above(0.95)},
		}
	}
	if c.MaxConnections > 0 {
		o.ResourceMonitors = append(o.ResourceMonitors, &overload.ResourceMonitor{
			Name: "envoy.resource_monitors.global_downstream_max_connections",
			ConfigType: &overload.ResourceMonitor_TypedConfig{
				TypedConfig: pack(&connections.DownstreamConnectionsConfig{
					MaxActiveDownstreamConnections: c.MaxConnections,
				}),
			},
		})
	}
	return o
}

// pipe is the address of a unix socket.
func pipe(path string, mode uint32) *core.Address {
	return &core.Address{Address: &core.Address_Pipe{Pipe: &core.Pipe{Path: path, Mode: mode}}}
}
