// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// fronts holds the resources of one Envoy: the listeners for clients, and the routes to revisions. Those of a service
// are sent once the Envoy has the clusters to which they lead, because requests would get 503 before that. Meanwhile,
// clients wait in the gate, or are served as before. Resources of other kinds reach Envoy in any order.
type fronts struct {
	proxy             Proxy
	listeners, routes *cache.LinearCache

	// What follows is guarded by the mu of content.

	clusters  map[string]bool    // those that the Envoy has
	listening map[string]Service // services for which it has listeners
	routed    map[string]Traffic // by service, as in the routes
}

func newFronts(p Proxy) *fronts {
	return &fronts{
		proxy: p, listeners: cache.NewLinearCache(resource.ListenerType), routes: cache.NewLinearCache(resource.RouteType),
		clusters: map[string]bool{}, listening: map[string]Service{}, routed: map[string]Traffic{},
	}
}

// update sets the listeners and routes to those of services, as far as the Envoy has their clusters. A retired Envoy
// gets no listeners.
func (f *fronts) update(services map[string]Service, retired bool) error {
	listenerPut, routePut := resources{}, resources{}
	var listenerDel, routeDel []string
	for name := range f.listening {
		if _, still := services[name]; !still || retired {
			listenerDel = append(listenerDel, name)
			delete(f.listening, name)
		}
	}
	for name := range f.routed {
		if services[name].Traffic.Empty() {
			routeDel = append(routeDel, name)
			delete(f.routed, name)
		}
	}
	for name, s := range services {
		if !f.reaches(s) {
			continue
		}
		if had, ok := f.routed[name]; !s.Traffic.Empty() && !(ok && had.equal(s.Traffic)) {
			routePut[name], f.routed[name] = routes(&s), s.Traffic
		}
		if old, ok := f.listening[name]; !retired && !(ok && old.sameListener(s)) {
			listenerPut[name], f.listening[name] = listenerOf(&s, f.proxy), s
		}
	}
	// Listeners come last and go first, since they need routes.
	return errors.Join(
		change(f.listeners, nil, listenerDel), change(f.routes, routePut, nil),
		change(f.listeners, listenerPut, nil), change(f.routes, nil, routeDel),
	)
}

// reaches reports whether the Envoy has all clusters to which a service leads.
func (f *fronts) reaches(s Service) bool {
	if s.Traffic.Empty() {
		return f.clusters[s.Name]
	}
	for _, r := range s.Traffic.Revisions {
		if !f.clusters[r.Service] {
			return false
		}
	}
	return true
}
