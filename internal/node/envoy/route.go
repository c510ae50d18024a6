// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	previoushosts "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previouspriorities "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// requestAttempts is how often a request is repeated at most.
	requestAttempts = 5
	// podAttempts is the number of them at pods; after that, the request goes to the service address, where it waits
	// for a pod.
	podAttempts = 2
	// firstBackoff and longestBackoff are the pauses before a request is repeated.
	firstBackoff, longestBackoff = 5 * time.Millisecond, 100 * time.Millisecond
)

// Conditions for repeating a request. With those of retryUnseen, the pod cannot have seen the request. With
// retryReset it may have, but has not answered: then only requests that may be made twice are repeated.
const (
	retryUnseen = "connect-failure,refused-stream,reset-before-request"
	retryReset  = retryUnseen + ",reset"
)

// idempotent matches the methods of requests that may be made twice (RFC 9110, section 9.2.2).
const idempotent = "GET|HEAD|OPTIONS|TRACE|PUT|DELETE"

// routes returns the routes of requests to the service's cluster, or to those of its revisions.
func routes(s *Service) *route.RouteConfiguration {
	c := &route.RouteConfiguration{
		Name: s.Name, ValidateClusters: wrapperspb.Bool(false), // see clustersLinger
		VirtualHosts: []*route.VirtualHost{{Name: s.Name, Domains: []string{"*"}}},
		RequestHeadersToAdd: []*core.HeaderValueOption{{
			Header: &core.HeaderValue{
				Key: "forwarded", Value: "for=%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%;proto=http",
			},
			AppendAction: core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD,
		}},
		// Envoy's own headers about the origin of the client.
		RequestHeadersToRemove: []string{"x-envoy-internal", "x-envoy-external-address"},
	}
	for _, d := range destinations(s) {
		c.VirtualHosts[0].Routes = append(c.VirtualHosts[0].Routes, routesTo(d)...)
	}
	return c
}

// routesTo lead requests to a destination.
func routesTo(d destination) []*route.Route {
	to := func(m *route.RouteMatch, on string, upgrades bool) *route.Route {
		m.Headers = append(m.Headers, d.headers...)
		a := &route.RouteAction{Timeout: durationpb.New(0), RetryPolicy: retries(on)}
		if d.set(a); upgrades {
			leadToUpgrades(a)
		}
		return &route.Route{Match: m, Action: &route.Route_Route{Route: a}}
	}
	path := func() *route.RouteMatch {
		return &route.RouteMatch{PathSpecifier: &route.RouteMatch_Prefix{Prefix: "/"}}
	}
	repeatable := path()
	repeatable.Headers = []*route.HeaderMatcher{{
		Name: ":method",
		HeaderMatchSpecifier: &route.HeaderMatcher_StringMatch{StringMatch: &matcher.StringMatcher{
			MatchPattern: &matcher.StringMatcher_SafeRegex{SafeRegex: &matcher.RegexMatcher{Regex: idempotent}},
		}},
	}}
	upgraded := path() // upgrades that are not known have no such header here
	upgraded.Headers = []*route.HeaderMatcher{{
		Name: "upgrade", HeaderMatchSpecifier: &route.HeaderMatcher_PresentMatch{PresentMatch: true},
	}}
	return []*route.Route{
		to(upgraded, retryUnseen, true), to(repeatable, retryReset, false), to(path(), retryUnseen, false),
		// WebSockets over HTTP/2 (RFC 8441) have no path to match by.
		to(&route.RouteMatch{PathSpecifier: &route.RouteMatch_ConnectMatcher_{
			ConnectMatcher: &route.RouteMatch_ConnectMatcher{},
		}}, retryUnseen, true),
	}
}

// leadToUpgrades changes the clusters of a route to those for upgraded connections.
func leadToUpgrades(a *route.RouteAction) {
	switch c := a.ClusterSpecifier.(type) {
	case *route.RouteAction_Cluster:
		c.Cluster = upgradesOf(c.Cluster)
	case *route.RouteAction_WeightedClusters:
		for _, w := range c.WeightedClusters.Clusters {
			w.Name = upgradesOf(w.Name)
		}
	}
}

// setRoutes sets the routes of a connection manager. Routes to revisions are a resource of their own, because they
// change while clients keep their connections, and a new listener would make clients reconnect.
func setRoutes(s *Service, m *hcm.HttpConnectionManager) {
	if s.Traffic.Empty() {
		m.RouteSpecifier = &hcm.HttpConnectionManager_RouteConfig{RouteConfig: routes(s)}
		return
	}
	m.RouteSpecifier = &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{ConfigSource: ads(), RouteConfigName: s.Name}}
}

// retries repeats requests at other pods, and at the service address if the first ones fail.
func retries(on string) *route.RetryPolicy {
	return &route.RetryPolicy{
		RetryOn: on, NumRetries: wrapperspb.UInt32(requestAttempts), HostSelectionRetryMaxAttempts: 3,
		RetryHostPredicate: []*route.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &route.RetryPolicy_RetryHostPredicate_TypedConfig{
				TypedConfig: pack(&previoushosts.PreviousHostsPredicate{}),
			},
		}},
		RetryPriority: &route.RetryPolicy_RetryPriority{
			Name: "envoy.retry_priorities.previous_priorities",
			ConfigType: &route.RetryPolicy_RetryPriority_TypedConfig{
				TypedConfig: pack(&previouspriorities.PreviousPrioritiesConfig{UpdateFrequency: podAttempts}),
			},
		},
		RetryBackOff: &route.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(firstBackoff), MaxInterval: durationpb.New(longestBackoff),
		},
	}
}

// filter is a filter of a listener.
func filter(name string, config proto.Message) *listener.Filter {
	return &listener.Filter{Name: name, ConfigType: &listener.Filter_TypedConfig{TypedConfig: pack(config)}}
}
