// SPDX-License-Identifier: Apache-2.0

package poddns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// Domain is the domain of services, as in Kubernetes: NAME.NAMESPACE.svc.cluster.local.
const Domain = "cluster.local"

const (
	zone        = Domain + "."
	serviceZone = "svc." + zone
	// ttl is the time for which answers about services may be kept, in seconds; CoreDNS in Kubernetes has the same.
	ttl = 5
)

// Name is the name of a service.
type Name struct{ Namespace, Name string }

// fqdn returns the name in the DNS.
func (n Name) fqdn() string { return n.Name + "." + n.Namespace + "." + serviceZone }

// names are the names that the server resolves by itself. It is immutable.
type names struct {
	addrs map[Name]netip.Addr
	names map[netip.Addr]Name
	own   []netip.Prefix // ranges for whose addresses no other server has names
}

func newNames(services map[Name]netip.Addr, own []netip.Prefix) *names {
	n := &names{addrs: services, names: map[netip.Addr]Name{}, own: own}
	for name, addr := range services {
		n.names[addr] = name
	}
	return n
}

// verdict decides how a question is answered.
type verdict int

const (
	forward verdict = iota // the machine's resolver knows
	exists                 // the name exists; there may be no record of the type
	unknown                // there is no such name
)

// find answers a question of a pod in a namespace. Beside names in Domain, names without its last labels are
// accepted: redis, redis.default and redis.default.svc, for programs that do not use the search list of resolv.conf.
// The first two go to the machine's resolver if there is no such service.
func (n *names) find(q dns.Question, namespace string) ([]dns.RR, verdict) {
	asked := strings.ToLower(q.Name)
	if addr, ok := reverse(asked); ok {
		return n.findAddress(q, addr)
	}
	if asked == zone || asked == serviceZone {
		return nil, exists
	}
	rest, inside := strings.CutSuffix(asked, "."+serviceZone)
	if !inside {
		if rest, inside = strings.CutSuffix(asked, ".svc."); !inside {
			if strings.HasSuffix(asked, "."+zone) {
				return nil, unknown
			}
			rest = strings.TrimSuffix(asked, ".")
		}
	}
	labels := strings.Split(rest, ".")
	var name Name
	switch {
	case len(labels) == 2:
		name = Name{Name: labels[0], Namespace: labels[1]}
	case len(labels) == 1 && !inside:
		name = Name{Name: labels[0], Namespace: namespace}
	case len(labels) == 1 && n.hasNamespace(labels[0]):
		return nil, exists
	}
	addr, ok := n.addrs[name]
	switch {
	case !ok && inside:
		return nil, unknown
	case !ok:
		return nil, forward
	case q.Qtype != dns.TypeA && q.Qtype != dns.TypeANY:
		return nil, exists
	}
	return []dns.RR{&dns.A{Hdr: header(q, dns.TypeA), A: addr.AsSlice()}}, exists
}

func (n *names) hasNamespace(namespace string) bool {
	for name := range n.addrs {
		if name.Namespace == namespace {
			return true
		}
	}
	return false
}

// findAddress answers a question for the name of an address.
func (n *names) findAddress(q dns.Question, addr netip.Addr) ([]dns.RR, verdict) {
	name, ok := n.names[addr]
	switch {
	case ok && q.Qtype != dns.TypePTR && q.Qtype != dns.TypeANY:
		return nil, exists
	case ok:
		return []dns.RR{&dns.PTR{Hdr: header(q, dns.TypePTR), Ptr: name.fqdn()}}, exists
	}
	for _, p := range n.own {
		if p.Contains(addr) {
			return nil, unknown
		}
	}
	return nil, forward
}

// reverse returns the IPv4 address that a name below in-addr.arpa stands for (RFC 1035, section 3.5).
func reverse(name string) (netip.Addr, bool) {
	text, ok := strings.CutSuffix(name, ".in-addr.arpa.")
	if !ok {
		return netip.Addr{}, false
	}
	b := strings.Split(text, ".")
	if len(b) != 4 {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(b[3] + "." + b[2] + "." + b[1] + "." + b[0])
	return addr, err == nil
}

func header(q dns.Question, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: q.Name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// authority returns the record that says for how long a name does not exist (RFC 2308).
func authority() []dns.RR {
	return []dns.RR{&dns.SOA{
		Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:  "ns.dns." + zone, Mbox: "hostmaster." + zone, Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}}
}
