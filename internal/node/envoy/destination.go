// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tcp "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// destination is a part of a service's requests with the cluster, or the clusters, that they go to.
type destination struct {
	headers []*route.HeaderMatcher // of these requests
	set     func(*route.RouteAction)
}

// destinations returns where requests go. The first match applies.
func destinations(s *Service) (all []destination) {
	if s.Traffic.Empty() {
		return []destination{{set: func(a *route.RouteAction) {
			a.ClusterSpecifier = &route.RouteAction_Cluster{Cluster: s.Name}
		}}}
	}
	for _, r := range s.Traffic.Revisions {
		if r.Tag == "" {
			continue
		}
		all = append(all, destination{
			headers: []*route.HeaderMatcher{{
				Name: TagHeader,
				HeaderMatchSpecifier: &route.HeaderMatcher_StringMatch{StringMatch: &matcher.StringMatcher{
					MatchPattern: &matcher.StringMatcher_Exact{Exact: r.Tag},
				}},
			}},
			set: func(a *route.RouteAction) {
				a.ClusterSpecifier = &route.RouteAction_Cluster{Cluster: r.Service}
			},
		})
	}
	all = append(all, s.Traffic.kept()...)
	return append(all, destination{set: s.Traffic.share})
}

// share distributes requests among the revisions by their percentages.
func (t Traffic) share(a *route.RouteAction) {
	w := &route.WeightedCluster{}
	for _, r := range t.Revisions {
		if r.Percent > 0 && t.Sticky.Cookie == "" {
			w.Clusters = append(w.Clusters, &route.WeightedCluster_ClusterWeight{
				Name: r.Service, Weight: wrapperspb.UInt32(r.Percent),
			})
		}
	}
	for place, service := range t.places() {
		w.Clusters = append(w.Clusters, &route.WeightedCluster_ClusterWeight{
			Name: service, Weight: wrapperspb.UInt32(1),
			ResponseHeadersToAdd: []*core.HeaderValueOption{{
				Header:       &core.HeaderValue{Key: "set-cookie", Value: t.Sticky.cookie(place)},
				AppendAction: core.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD,
			}},
		})
	}
	if t.Sticky.Header != "" {
		a.HashPolicy = []*route.RouteAction_HashPolicy{{PolicySpecifier: &route.RouteAction_HashPolicy_Header_{
			Header: &route.RouteAction_HashPolicy_Header{HeaderName: t.Sticky.Header},
		}}}
		w.RandomValueSpecifier = &route.WeightedCluster_UseHashPolicy{UseHashPolicy: wrapperspb.Bool(true)}
	}
	a.ClusterSpecifier = &route.RouteAction_WeightedClusters{WeightedClusters: w}
}

// places returns the service of each hundredth of the requests, for clients with a cookie. They are in the order in
// which the revisions are listed, so that other percentages move few clients to another revision.
func (t Traffic) places() (services []string) {
	if t.Sticky.Cookie == "" {
		return nil
	}
	for _, r := range t.Revisions {
		services = append(services, slices.Repeat([]string{r.Service}, int(r.Percent))...)
	}
	return services
}

// kept returns the destinations for clients whose cookie has their place. Envoy can select a cluster by a cookie, but
// does not set such cookies.
func (t Traffic) kept() (all []destination) {
	numbers := map[string][]string{}
	for place, service := range t.places() {
		numbers[service] = append(numbers[service], strconv.Itoa(place))
	}
	for _, r := range t.Revisions {
		if numbers[r.Service] == nil {
			continue
		}
		pattern := fmt.Sprintf("(.*; ?)?%s=(%s)(;.*)?", t.Sticky.Cookie, strings.Join(numbers[r.Service], "|"))
		all = append(all, destination{
			headers: []*route.HeaderMatcher{{
				Name: "cookie",
				HeaderMatchSpecifier: &route.HeaderMatcher_StringMatch{StringMatch: &matcher.StringMatcher{
					MatchPattern: &matcher.StringMatcher_SafeRegex{SafeRegex: &matcher.RegexMatcher{Regex: pattern}},
				}},
			}},
			set: func(a *route.RouteAction) {
				a.ClusterSpecifier = &route.RouteAction_Cluster{Cluster: r.Service}
			},
		})
	}
	return all
}

// cookie returns the Set-Cookie header that gives a client its place for all its requests (RFC 6265).
func (s Sticky) cookie(place int) string {
	c := http.Cookie{
		Name: s.Cookie, Value: strconv.Itoa(place), Path: "/", MaxAge: int(s.MaxAge / time.Second), HttpOnly: true,
		SameSite: http.SameSiteLaxMode,
	}
	return c.String()
}

// tcpDestination routes connections that are not HTTP to the service's pods or revisions.
func tcpDestination(s *Service, p *tcp.TcpProxy) {
	if s.Traffic.Empty() {
		p.ClusterSpecifier = &tcp.TcpProxy_Cluster{Cluster: s.Name}
		return
	}
	w := &tcp.TcpProxy_WeightedCluster{}
	for _, r := range s.Traffic.Revisions {
		if r.Percent > 0 {
			w.Clusters = append(w.Clusters, &tcp.TcpProxy_WeightedCluster_ClusterWeight{Name: r.Service, Weight: r.Percent})
		}
	}
	p.ClusterSpecifier = &tcp.TcpProxy_WeightedClusters{WeightedClusters: w}
}
