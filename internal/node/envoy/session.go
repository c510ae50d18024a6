// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// session follows the stream of one Envoy. Its methods are called by one goroutine.
type session struct {
	acks      *acks
	acked     acked
	content   *content
	connected func(Proxy) (*fronts, error) // returns once the Envoy may have its resources
	own       *fronts                      // nil until the Envoy has identified itself
	pods      map[string]uint64            // versions of pods that were sent, by nonce
	clusters  map[string][]string          // names of clusters that were sent, by nonce
	routes    map[string]uint64            // versions of routes that were sent, by nonce
}

func newSession(a *acks, c *content, connected func(Proxy) (*fronts, error)) *session {
	return &session{
		acks: a, content: c, connected: connected,
		pods: map[string]uint64{}, clusters: map[string][]string{}, routes: map[string]uint64{},
	}
}

// OnDeltaStreamOpen does nothing: the first request identifies the Envoy.
func (s *session) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }

// OnDeltaStreamClosed does nothing: the caller of the handler forgets the session.
func (s *session) OnDeltaStreamClosed(int64, *core.Node) {}

// OnStreamDeltaRequest records what Envoy has accepted, and logs what it refuses.
func (s *session) OnStreamDeltaRequest(_ int64, r *discovery.DeltaDiscoveryRequest) (err error) {
	if s.own == nil && r.GetNode() != nil {
		if s.own, err = s.connected(proxyOf(r.GetNode())); err != nil {
			return err
		}
	}
	if e := r.GetErrorDetail(); e != nil {
		s.acks.log.Error("Envoy refuses a part of its configuration", "type", r.GetTypeUrl(), "error", e.GetMessage())
	}
	nonce := r.GetResponseNonce()
	if version, sent := s.pods[nonce]; sent {
		delete(s.pods, nonce)
		s.acks.acknowledged(&s.acked, version)
	}
	switch {
	case s.own == nil:
		return nil
	case r.GetTypeUrl() == resource.RouteType:
		return s.routesRequested(r)
	case r.GetTypeUrl() != resource.ClusterType:
		return nil
	}
	has := s.clusters[nonce]
	delete(s.clusters, nonce)
	if known := r.GetInitialResourceVersions(); len(known) > 0 { // from an earlier server
		has = slices.AppendSeq(has, maps.Keys(known))
	}
	if len(has) == 0 {
		return nil
	}
	return s.content.took(s.own, has)
}

// routesRequested records which routes an Envoy has, and which it asks for.
func (s *session) routesRequested(r *discovery.DeltaDiscoveryRequest) error {
	nonce := r.GetResponseNonce()
	version, sent := s.routes[nonce]
	delete(s.routes, nonce)
	more, fewer := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe()
	var err error
	if len(more)+len(fewer) > 0 {
		err = s.content.follow(s.own, more, fewer)
	}
	if sent {
		err = errors.Join(err, s.content.tookRoutes(s.own, version))
	}
	return err
}

// OnStreamDeltaResponse notes which pods, routes and clusters are sent.
func (s *session) OnStreamDeltaResponse(_ int64, _ *discovery.DeltaDiscoveryRequest,
	r *discovery.DeltaDiscoveryResponse) {
	switch r.GetTypeUrl() {
	case resource.EndpointType:
		if version, err := strconv.ParseUint(r.GetSystemVersionInfo(), 10, 64); err == nil {
			s.pods[r.GetNonce()] = version
		}
	case resource.RouteType:
		if version, err := strconv.ParseUint(r.GetSystemVersionInfo(), 10, 64); err == nil {
			s.routes[r.GetNonce()] = version
		}
	case resource.ClusterType:
		for _, c := range r.GetResources() {
			s.clusters[r.GetNonce()] = append(s.clusters[r.GetNonce()], c.GetName())
		}
		if gone := r.GetRemovedResources(); len(gone) > 0 && s.own != nil {
			s.content.lost(s.own, gone)
		}
	}
}

// proxyOf returns the Proxy in the metadata of an Envoy's node; the address is invalid if it has none.
func proxyOf(n *core.Node) Proxy {
	fields := n.GetMetadata().GetFields()
	addr, _ := netip.ParseAddr(fields[addrKey].GetStringValue())
	created, _ := time.Parse(time.RFC3339Nano, fields[createdKey].GetStringValue())
	return Proxy{
		Addr: addr, Netns: fields[netnsKey].GetStringValue(), Pod: fields[podKey].GetStringValue(), Created: created,
		Transparent: fields[transparentKey].GetStringValue() == "true",
	}
}
