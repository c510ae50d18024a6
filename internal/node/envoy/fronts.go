// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"maps"

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
	version   uint64             // number of changes of routes, as the cache counts them
	follows   map[string]bool    // services whose routes the Envoy has asked for
	// dropped are the changes of routes that the Envoy may not have yet, by the revision that got no more requests by them
	// and the service: the version of routes.
	dropped map[string]map[string]uint64
}

func newFronts(p Proxy) *fronts {
	return &fronts{
		proxy: p, listeners: cache.NewLinearCache(resource.ListenerType), routes: cache.NewLinearCache(resource.RouteType),
		clusters: map[string]bool{}, listening: map[string]Service{}, routed: map[string]Traffic{},
		follows: map[string]bool{}, dropped: map[string]map[string]uint64{},
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
			f.drop(name, had, s.Traffic)
			routePut[name], f.routed[name] = routes(&s), s.Traffic
		}
		if old, ok := f.listening[name]; !retired && !(ok && old.sameListener(s)) {
			listenerPut[name], f.listening[name] = listenerOf(&s, f.proxy), s
		}
	}
	// Listeners come last and go first, since they need routes.
	return errors.Join(
		change(f.listeners, nil, listenerDel), f.changeRoutes(routePut, nil),
		change(f.listeners, listenerPut, nil), f.changeRoutes(nil, routeDel),
	)
}

func (f *fronts) changeRoutes(put resources, del []string) error {
	if len(put)+len(del) > 0 {
		f.version++ // as the cache does
	}
	return change(f.routes, put, del)
}

// drop notes which revisions of a service get no more requests by the next change of routes.
func (f *fronts) drop(service string, before, now Traffic) {
	f.forget(func(revision, of string, _ uint64) bool { return of == service && now.leadsTo(revision) })
	if !f.follows[service] {
		return
	}
	for _, r := range before.Revisions {
		if !before.leadsTo(r.Service) || now.leadsTo(r.Service) {
			continue
		}
		if f.dropped[r.Service] == nil {
			f.dropped[r.Service] = map[string]uint64{}
		}
		f.dropped[r.Service][service] = f.version + 1
	}
}

// took records that the Envoy has the routes up to a version.
func (f *fronts) took(version uint64) {
	f.forget(func(_, _ string, v uint64) bool { return v <= version })
}

// follow records for which services the Envoy asks for routes, and for which it no longer does: it has none for them.
func (f *fronts) follow(services, noLonger []string) {
	for _, name := range services {
		f.follows[name] = true
	}
	for _, name := range noLonger {
		delete(f.follows, name)
	}
	f.forget(func(_, service string, _ uint64) bool { return !f.follows[service] })
}

// forget removes what has become known from dropped.
func (f *fronts) forget(known func(revision, service string, version uint64) bool) {
	for revision, changes := range f.dropped {
		maps.DeleteFunc(changes, func(service string, version uint64) bool { return known(revision, service, version) })
		if len(changes) == 0 {
			delete(f.dropped, revision)
		}
	}
}

// leadsTo reports whether routes of the Envoy may lead to a revision.
func (f *fronts) leadsTo(revision string) bool {
	for _, t := range f.routed {
		if t.leadsTo(revision) {
			return true
		}
	}
	return f.dropped[revision] != nil
}

// reaches reports whether the Envoy has all clusters to which a service leads.
func (f *fronts) reaches(s Service) bool {
	if s.Traffic.Empty() {
		return f.has(s.Name)
	}
	for _, r := range s.Traffic.Revisions {
		if !f.has(r.Service) {
			return false
		}
	}
	return true
}

// has reports whether the Envoy has all clusters of a service.
func (f *fronts) has(service string) bool {
	for _, c := range clustersOf(service) {
		if !f.clusters[c] {
			return false
		}
	}
	return true
}
