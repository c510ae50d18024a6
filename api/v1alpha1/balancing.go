// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// SplitsTraffic reports whether the service's requests go to other services. It has no pods of its own then.
func (s *WangellServiceSpec) SplitsTraffic() bool { return len(s.Traffic) > 0 }

// BalancesRequests reports whether each request, and not each connection, gets a pod.
func (s *WangellServiceSpec) BalancesRequests() bool {
	return s.Balancing != nil && s.Balancing.Level == LevelRequest || s.SplitsTraffic()
}

// ValidateWithoutEnvoy returns what in s cannot work on a cluster whose nodes do not run Envoy.
func ValidateWithoutEnvoy(s *WangellService) ValidationErrors {
	var errs ValidationErrors
	if s.Spec.SplitsTraffic() {
		errs.add(specPath.Child("traffic"), "leave it out, or install the chart with requests.enabled=true",
			"needs Envoy on the nodes, which is off in this cluster")
	} else if s.Spec.BalancesRequests() {
		errs.add(specPath.Child("balancing", "level"), "write level: Connection, or install the chart with "+
			"requests.enabled=true", "Request needs Envoy on the nodes, which is off in this cluster")
	}
	return errs
}

// maxTrustedProxies is the most networks in spec.balancing.trustedProxies.
const maxTrustedProxies = 16

// Proxies returns the networks of spec.balancing.trustedProxies. What is not an IPv4 network, which validation refuses,
// is left out.
func (b *Balancing) Proxies() []netip.Prefix { return networksOf(b.TrustedProxies) }

// balancing checks spec.balancing.
func (e *ValidationErrors) balancing(s *WangellServiceSpec) {
	b := s.Balancing
	if b == nil {
		return
	}
	p := specPath.Child("balancing")
	e.oneOf(p.Child("localityPreference"), string(b.LocalityPreference), string(LocalityNone), string(LocalityLocal))
	e.oneOf(p.Child("level"), string(b.Level), string(LevelConnection), string(LevelRequest))
	e.oneOf(p.Child("protocol"), string(b.Protocol),
		string(ProtocolAuto), string(ProtocolHTTP1), string(ProtocolHTTP2), string(ProtocolTCP))
	e.oneOf(p.Child("clientAddress"), string(b.ClientAddress),
		string(ClientAddressHeader), string(ClientAddressTransparent))
	e.networks(p.Child("trustedProxies"), b.TrustedProxies, maxTrustedProxies, "trustedProxies", nil)
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"clientIdleTimeout", b.ClientIdleTimeout}, {"maxRequestsPerPod", int64(b.MaxRequestsPerPod)}, {"warmup", b.Warmup},
	} {
		if f.value != 0 {
			e.pathInRange(p.Child(f.name), f.value)
		}
	}
	if b.Level == LevelRequest {
		if s.SessionAffinity == corev1.ServiceAffinityClientIP {
			e.add(specPath.Child("sessionAffinity"), "write sessionAffinity: None, or balancing: {level: Connection}",
				"ClientIP keeps a client on one pod, but with level: Request each of its requests may get another")
		}
		return
	}
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"protocol", b.Protocol != ""}, {"clientIdleTimeout", b.ClientIdleTimeout != 0},
		{"maxRequestsPerPod", b.MaxRequestsPerPod != 0}, {"warmup", b.Warmup != 0},
		{"clientAddress", b.ClientAddress != ""}, {"trustedProxies", b.TrustedProxies != nil},
	} {
		if f.given {
			e.add(p.Child(f.name), "write level: Request beside it, or leave it out", "needs level: Request")
		}
	}
}
