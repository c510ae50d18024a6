// SPDX-License-Identifier: Apache-2.0

// Package netpol decides which sources the NetworkPolicies of a cluster let connect to the pods of a service. It is
// pure: a View goes in, a set of addresses comes out. The semantics follow the API reference of
// networking.k8s.io/v1.
package netpol

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"

	"wangell.loutres.me/internal/decide/sources"
)

// Target are the pods of a service, which need not exist.
type Target struct {
	Namespace string
	Labels    labels.Set // of the pod template
	Port      int32      // the pods' TCP port
	PortNames []string   // names that the pod template gives this port
	More      []Port     // further ports of the pods
}

// Port is a TCP port of pods.
type Port struct {
	Number int32
	Names  []string // that the pod template gives it
}

// at returns the target with another port as its only one.
func (t Target) at(p Port) *Target {
	return &Target{Namespace: t.Namespace, Labels: t.Labels, Port: p.Number, PortNames: p.Names}
}

// Policy is a NetworkPolicy, prepared for Judge.
type Policy struct {
	Namespace, Name string
	selects         labels.Selector
	rules           []rule
}

// rule is an ingress rule: clients that any of the peers matches may connect to any of the ports.
type rule struct {
	ports []port
	peers []peer // nil: all clients
}

// port is a range of ports, or a named one.
type port struct {
	first, last int32
	name        string
}

// peer is a block of addresses or, if pods is set, a choice of pods.
type peer struct {
	block      sources.Set
	namespaces labels.Selector // nil: the policy's own
	pods       labels.Selector
	choice     choice // of pods
}

// choice identifies the pods that a peer selects: peers with the same choice select the same pods.
type choice struct {
	namespace, namespaces, pods string // either the namespace or the text of a selector of namespaces
}

// Prepare returns a policy for Judge; ok is false if it does not restrict ingress. Invalid parts, which the API
// server refuses, match nothing: the policy then allows fewer clients, not more.
func Prepare(p *networkingv1.NetworkPolicy) (out Policy, ok bool) {
	if t := p.Spec.PolicyTypes; len(t) > 0 && !slices.Contains(t, networkingv1.PolicyTypeIngress) {
		return Policy{}, false
	}
	out = Policy{Namespace: p.Namespace, Name: p.Name}
	var err error
	if out.selects, err = metav1.LabelSelectorAsSelector(&p.Spec.PodSelector); err != nil {
		out.selects = labels.Everything()
		return out, true // it selects all pods and allows no client
	}
	for _, r := range p.Spec.Ingress {
		out.rules = append(out.rules, prepareRule(p.Namespace, r))
	}
	return out, true
}

func prepareRule(namespace string, r networkingv1.NetworkPolicyIngressRule) (out rule) {
	for _, p := range r.Ports {
		if p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		switch {
		case p.Port == nil:
			out.ports = append(out.ports, port{first: 1, last: 65535})
		case p.Port.Type == intstr.String:
			out.ports = append(out.ports, port{name: p.Port.StrVal})
		case p.EndPort != nil:
			out.ports = append(out.ports, port{first: p.Port.IntVal, last: *p.EndPort})
		default:
			out.ports = append(out.ports, port{first: p.Port.IntVal, last: p.Port.IntVal})
		}
	}
	if len(r.Ports) == 0 {
		out.ports = []port{{first: 1, last: 65535}}
	}
	if len(r.From) == 0 {
		return out
	}
	out.peers = make([]peer, 0, len(r.From))
	for _, f := range r.From {
		if p, ok := preparePeer(namespace, f); ok {
			out.peers = append(out.peers, p)
		}
	}
	return out
}

func preparePeer(namespace string, f networkingv1.NetworkPolicyPeer) (p peer, ok bool) {
	if f.IPBlock != nil {
		p.block, ok = blockOf(f.IPBlock)
		return p, ok && f.PodSelector == nil && f.NamespaceSelector == nil
	}
	var err error
	if f.NamespaceSelector != nil {
		if p.namespaces, err = metav1.LabelSelectorAsSelector(f.NamespaceSelector); err != nil {
			return p, false
		}
	}
	p.pods = labels.Everything()
	if f.PodSelector != nil {
		p.pods, err = metav1.LabelSelectorAsSelector(f.PodSelector)
	}
	if err != nil || f.PodSelector == nil && f.NamespaceSelector == nil {
		return p, false
	}
	p.choice = choice{namespace: namespace, pods: p.pods.String()}
	if p.namespaces != nil {
		p.choice = choice{namespaces: "in " + p.namespaces.String(), pods: p.pods.String()}
	}
	return p, true
}

// blockOf returns the addresses of a block without its exceptions. A block of IPv6 has none that matter.
func blockOf(b *networkingv1.IPBlock) (s sources.Set, ok bool) {
	all, ok := parseCIDR(b.CIDR)
	if !ok {
		return s, false
	}
	var except []netip.Prefix
	for _, text := range b.Except {
		p, ok := parseCIDR(text)
		if !ok {
			return s, false
		}
		except = append(except, p)
	}
	return sources.Of(all).Minus(sources.Of(except...)), true
}

// parseCIDR accepts what the API server accepts: also leading zeros, which are decimal, and IPv4 prefixes that are
// written as IPv4-mapped IPv6 (RFC 4291, 2.5.5.2).
func parseCIDR(text string) (p netip.Prefix, ok bool) {
	_, n, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return p, false
	}
	ones, bits := n.Mask.Size()
	a, _ := netip.AddrFromSlice(n.IP)
	if a.Is4In6() && bits == 128 && ones >= 96 {
		ones -= 96
	}
	return netip.PrefixFrom(a.Unmap(), ones), true
}

// covers reports whether a rule is about the port of a target.
func (r *rule) covers(t *Target) bool {
	return slices.ContainsFunc(r.ports, func(p port) bool {
		if p.name != "" {
			return slices.Contains(t.PortNames, p.name)
		}
		return p.first <= t.Port && t.Port <= p.last
	})
}
