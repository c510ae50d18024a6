// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/netip"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	inspector "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/http_inspector/v3"
	originalsrc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_src/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcp "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// firstBytes is how long a client may take to send the bytes that identify its protocol. After that it counts as
	// TCP.
	firstBytes = time.Second
	// headersTimeout is how long a client may take to send the headers of a request.
	headersTimeout = 10 * time.Second
	// backlog is the largest number of connections that Envoy has not accepted yet; the kernel may allow fewer.
	backlog = 4096
	// maxStreams is the largest number of requests at a time on a connection of HTTP/2.
	maxStreams = 1024
	// connectAttempts is how often a TCP connection is tried.
	connectAttempts = 5
)

// upgrades are the protocols that a client may change to by the header Upgrade. They stay on their pod. Others are
// ignored.
var upgrades = []string{"websocket", "spdy/3.1", "tcp"}

// originalSource makes Envoy connect from the client's address, at another port. Then each client has its own
// connections to pods (envoy: docs/configuration/listeners/listener_filters/original_src_filter).
func originalSource() *listener.ListenerFilter {
	return &listener.ListenerFilter{
		Name:       "envoy.filters.listener.original_src",
		ConfigType: &listener.ListenerFilter_TypedConfig{TypedConfig: pack(&originalsrc.OriginalSrc{})},
	}
}

// listenerOf returns the listener of a service in an Envoy.
func listenerOf(s *Service, p Proxy) *listener.Listener {
	l := &listener.Listener{
		Name: s.Name, Address: address(netip.AddrPortFrom(p.Addr, s.Port)), EnableReusePort: wrapperspb.Bool(true),
		TcpBacklogSize:                wrapperspb.UInt32(backlog),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
	}
	if s.Transparent && p.Transparent {
		l.ListenerFilters = []*listener.ListenerFilter{originalSource()}
	}
	switch s.Protocol {
	case TCP:
		l.FilterChains = []*listener.FilterChain{{Filters: tcpFilters(s)}}
	case Auto:
		l.ListenerFilters = append(l.ListenerFilters, &listener.ListenerFilter{
			Name:       "envoy.filters.listener.http_inspector",
			ConfigType: &listener.ListenerFilter_TypedConfig{TypedConfig: pack(&inspector.HttpInspector{})},
		})
		l.ListenerFiltersTimeout = durationpb.New(firstBytes)
		l.ContinueOnListenerFiltersTimeout = true
		http := &listener.FilterChainMatch{ApplicationProtocols: []string{"http/1.0", "http/1.1", "h2c"}}
		l.FilterChains = append(httpChains(s, http), &listener.FilterChain{Name: "tcp", Filters: tcpFilters(s)})
	default:
		l.FilterChains = httpChains(s, nil)
	}
	return l
}

// tcpFilters give each connection a pod.
func tcpFilters(s *Service) []*listener.Filter {
	p := &tcp.TcpProxy{
		StatPrefix: s.Name, IdleTimeout: durationpb.New(s.Silence), MaxConnectAttempts: wrapperspb.UInt32(connectAttempts),
	}
	tcpDestination(s, p)
	return []*listener.Filter{filter("envoy.filters.network.tcp_proxy", p)}
}

// httpFilters assign each request to a pod. Except for clientHeaders and unknown upgrades, requests and answers pass
// unchanged. trusted: what clients write in clientHeaders is true, and Envoy appends to it.
func httpFilters(s *Service, trusted bool) []*listener.Filter {
	codec := hcm.HttpConnectionManager_AUTO
	switch s.Protocol {
	case HTTP1:
		codec = hcm.HttpConnectionManager_HTTP1
	case HTTP2:
		codec = hcm.HttpConnectionManager_HTTP2
	}
	http2 := http2Options()
	http2.MaxConcurrentStreams = wrapperspb.UInt32(maxStreams)
	routing := &router.Router{SuppressEnvoyHeaders: true}
	reportCallers(s, routing)
	m := &hcm.HttpConnectionManager{
		StatPrefix: s.Name, CodecType: codec,
		HttpFilters: []*hcm.HttpFilter{{
			Name: "envoy.filters.http.router", ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: pack(routing)},
		}},
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(s.ClientIdle)},
		HttpProtocolOptions: &core.Http1ProtocolOptions{
			AcceptHttp_10: true, DefaultHostForHttp_10: s.Addr.Addr().String(), EnableTrailers: true,
			IgnoreHttp_11Upgrade: ignoredUpgrades(),
		},
		Http2ProtocolOptions:       http2,
		StreamIdleTimeout:          durationpb.New(s.Silence),
		RequestHeadersTimeout:      durationpb.New(headersTimeout),
		UseRemoteAddress:           wrapperspb.Bool(true),
		GenerateRequestId:          wrapperspb.Bool(false),
		PreserveExternalRequestId:  true,
		Proxy_100Continue:          true,
		ServerHeaderTransformation: hcm.HttpConnectionManager_PASS_THROUGH,
		AccessLog:                  countAnswers(s),
	}
	if trusted {
		m.XffNumTrustedHops = 1 // the client itself
	} else {
		m.EarlyHeaderMutationExtensions = []*core.TypedExtensionConfig{forgetClient()}
	}
	setRoutes(s, m)
	for _, u := range upgrades {
		m.UpgradeConfigs = append(m.UpgradeConfigs, &hcm.HttpConnectionManager_UpgradeConfig{UpgradeType: u})
	}
	return []*listener.Filter{filter("envoy.filters.network.http_connection_manager", m)}
}
