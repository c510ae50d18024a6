// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"wangell.loutres.me/internal/decide/sources"
)

// Pod is a pod that may be a client. Pods in their node's network are left out: selectors do not match them, as they
// cannot be distinguished from the node.
type Pod struct {
	Labels labels.Set
	Addrs  []netip.Addr
}

// View is the input of policies. It must not change once Judge was called.
type View struct {
	// Policies of each namespace.
	Policies map[string][]Policy
	// Namespaces are the labels of each namespace. One that is missing matches no selector.
	Namespaces map[string]labels.Set
	// Pods of each namespace.
	Pods map[string][]Pod

	matched map[choice]sources.Set // results of selectors, because many policies select the same pods
}

// Verdict is the result of the policies for a target.
type Verdict struct {
	// Restricted is set if a policy selects the target. Otherwise every source may connect.
	Restricted bool
	// Allowed are the sources that may connect, if it is restricted.
	Allowed sources.Set
	// More are the sources that may connect to the further ports of the target, in their order.
	More []sources.Set
	// Policies are the names of the policies that select the target, sorted.
	Policies []string
	// Selects is set if the verdict depends on pods.
	Selects bool
}

// Equal reports whether two verdicts are the same.
func (v *Verdict) Equal(o *Verdict) bool {
	return v.Restricted == o.Restricted && v.Selects == o.Selects && slices.Equal(v.Policies, o.Policies) &&
		v.Allowed.Equal(o.Allowed) && slices.EqualFunc(v.More, o.More, sources.Set.Equal)
}

// Judge applies the policies to a target. A source that any of them allows is allowed.
func (v *View) Judge(t Target) (out Verdict) {
	for _, port := range t.More {
		further := v.Judge(*t.at(port))
		out.More = append(out.More, further.Allowed)
		out.Selects = out.Selects || further.Selects
	}
	policies := v.Policies[t.Namespace]
	for i := range policies {
		p := &policies[i]
		if !p.selects.Matches(t.Labels) {
			continue
		}
		out.Restricted = true
		out.Policies = append(out.Policies, p.Name)
		for j := range p.rules {
			if r := &p.rules[j]; r.covers(&t) {
				v.apply(p.Namespace, r, &out)
			}
		}
	}
	slices.SortFunc(out.Policies, strings.Compare)
	return out
}

// apply adds what a rule allows.
func (v *View) apply(namespace string, r *rule, out *Verdict) {
	if r.peers == nil {
		out.Allowed = sources.All()
		return
	}
	for i := range r.peers {
		p := &r.peers[i]
		if p.pods == nil {
			out.Allowed = out.Allowed.Union(p.block)
			continue
		}
		out.Selects = true
		out.Allowed = out.Allowed.Union(v.match(namespace, p))
	}
}

// match returns the addresses of the pods that a peer selects.
func (v *View) match(namespace string, p *peer) sources.Set {
	if s, ok := v.matched[p.choice]; ok {
		return s
	}
	var found []netip.Prefix
	collect := func(pods []Pod) {
		for _, pod := range pods {
			if !p.pods.Matches(pod.Labels) {
				continue
			}
			for _, a := range pod.Addrs {
				found = append(found, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	if p.namespaces == nil {
		collect(v.Pods[namespace])
	} else {
		for name, of := range v.Namespaces {
			if p.namespaces.Matches(of) {
				collect(v.Pods[name])
			}
		}
	}
	if v.matched == nil {
		v.matched = map[choice]sources.Set{}
	}
	s := sources.Of(found...)
	v.matched[p.choice] = s
	return s
}
