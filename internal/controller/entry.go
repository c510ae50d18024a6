// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/wire"
)

// entry is the service's entry in the daemons' table of services.
func (w *wanted) entry() wire.Service {
	s := &w.spec.Spec
	e := wire.Service{
		Addr: w.addr, Name: string(w.key), IdleSeconds: w.idleSeconds(),
		MaxParked: uint16(s.MaxParked), MaxParkedPerSource: uint16(s.MaxParkedPerSource),
	}
	e.FreezeSeconds = uint32(w.freezeAfter() / time.Second)
	if w.announce {
		e.Flags |= wire.FlagAnnounce
	}
	if s.SessionAffinity == corev1.ServiceAffinityClientIP {
		e.Flags |= wire.FlagAffinity
	}
	if s.Balancing != nil && s.Balancing.LocalityPreference == v1alpha1.LocalityLocal {
		e.Flags |= wire.FlagPreferLocal
	}
	switch s.WakeProof {
	case v1alpha1.WakeProofAlways:
		e.Flags |= wire.FlagProofAlways
	case v1alpha1.WakeProofNever:
		e.Flags |= wire.FlagProofNever
	}
	if metered(s) {
		e.Flags |= wire.FlagUsage
	}
	if allowed, restricted := w.allowed(); restricted {
		e.Flags |= wire.FlagSources
		allowed, _ = allowed.Within(wire.MaxSourceRules)
		e.Sources = wire.NewSources(allowed.Rules())
	}
	if s.Retries != nil {
		e.Retries = uint8(*s.Retries)
	}
	if s.BalancesRequests() {
		e.Flags |= wire.FlagRequests
		e.Requests = balancingOf(s.Balancing)
		e.Requests.Traffic = trafficOf(w.spec)
	}
	return e
}

// balancingOf returns how requests are balanced, for the daemons.
func balancingOf(b *v1alpha1.Balancing) wire.Requests {
	r := wire.Requests{
		ClientIdleSeconds: uint32(b.ClientIdleTimeout), MaxPerPod: uint16(b.MaxRequestsPerPod),
		WarmupSeconds: uint16(b.Warmup), Transparent: b.ClientAddress == v1alpha1.ClientAddressTransparent,
	}
	switch b.Protocol {
	case v1alpha1.ProtocolHTTP1:
		r.Protocol = wire.ProtocolHTTP1
	case v1alpha1.ProtocolHTTP2:
		r.Protocol = wire.ProtocolHTTP2
	case v1alpha1.ProtocolTCP:
		r.Protocol = wire.ProtocolTCP
	}
	return r
}

// trafficOf returns the revisions that get the requests of a service, for the daemons.
func trafficOf(s *v1alpha1.WangellService) wire.Traffic {
	if !s.Spec.SplitsTraffic() {
		return wire.Traffic{}
	}
	var sticky wire.Sticky
	switch by := s.Spec.Sticky; {
	case by == nil:
	case by.Header != "":
		sticky = wire.Sticky{Kind: wire.StickyHeader, Name: by.Header}
	default:
		sticky = wire.Sticky{Kind: wire.StickyCookie, Name: by.Cookie, MaxAgeSeconds: uint32(by.MaxAge)}
	}
	var revisions []wire.Revision
	for _, r := range s.Spec.Traffic {
		revisions = append(revisions, wire.Revision{
			Service: s.Namespace + "/" + r.Revision, Percent: uint8(r.Percent), Tag: r.Tag,
		})
	}
	return wire.NewTraffic(sticky, revisions)
}

// drainMillis is how long connections may go on at a former address, in milliseconds.
func (w *wanted) drainMillis() uint32 { return uint32(*w.spec.Spec.DrainTimeout * 1000) }
