// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

// table finds services and pods by their names. It belongs to the loop.
type table struct {
	services  map[runtime.Key]*service
	byAddr    map[netip.AddrPort]*service
	byRuntime map[string]*pod // by the runtime's ID
	byWire    map[uint64]*pod // by the ID on the wire
	node      string          // home node of the pods for which the runtime does not name one
}

func newTable(node string) *table {
	return &table{
		services: map[runtime.Key]*service{}, byAddr: map[netip.AddrPort]*service{},
		byRuntime: map[string]*pod{}, byWire: map[uint64]*pod{}, node: node,
	}
}

// identify makes a pod known by the names that the runtime and daemons use for it.
func (t *table) identify(p *pod, rt runtime.Pod) {
	p.identify(rt, t.node)
	t.byRuntime[rt.ID] = p
	t.byWire[p.id] = p
}

// removePod forgets a pod of which nothing remains.
func (t *table) removePod(p *pod) {
	if t.byRuntime[p.rt.ID] == p {
		delete(t.byRuntime, p.rt.ID)
	}
	if t.byWire[p.id] == p {
		delete(t.byWire, p.id)
	}
	p.service.removePod(p)
}

// revisions returns the services that others route requests to.
func (t *table) revisions() map[runtime.Key]bool {
	all := map[runtime.Key]bool{}
	for _, s := range t.services {
		if s.machine.Deleted() {
			continue
		}
		for _, r := range s.spec.Spec.Traffic {
			all[runtime.Key(s.spec.Namespace+"/"+r.Revision)] = true
		}
	}
	return all
}

// unroute records for the revisions that a change of a service's traffic leaves out that they have got requests so far.
func (t *table) unroute(before, after *wanted) {
	for _, r := range before.spec.Spec.Traffic {
		if slices.ContainsFunc(after.spec.Spec.Traffic, func(n v1alpha1.Revision) bool { return n.Revision == r.Revision }) {
			continue
		}
		if s := t.services[runtime.Key(before.spec.Namespace+"/"+r.Revision)]; s != nil {
			s.routed = monotime.Now()
		}
	}
}

// podsOn returns the pods of a node.
func (t *table) podsOn(node string) []*pod {
	var pods []*pod
	for _, s := range t.services {
		for _, p := range s.pods {
			if p.node == node {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

// serving returns the main containers of the serving pods that selected selects, by the runtime's IDs of the pods.
func (t *table) serving(selected func(*pod) bool) map[string]string {
	names := map[string]string{}
	for id, p := range t.byRuntime {
		if p.published == lifecycle.PodServing && selected(p) {
			names[id] = p.service.spec.Name
		}
	}
	return names
}
