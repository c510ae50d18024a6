// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// clustersLinger is how long Envoys keep the clusters of a service that is gone, at least. A request for a cluster that
// is gone gets 503, and threads and listeners follow a change some time after Envoy has acknowledged it.
const clustersLinger = 5 * time.Second

// content holds the resources for Envoys. Only changed ones are made anew.
type content struct {
	clusters, pods *cache.LinearCache // of all Envoys
	acks           *acks
	ready          chan struct{} // closed by the first set
	once           sync.Once

	mu       sync.Mutex
	services map[string]Service
	sent     map[string][]netip.AddrPort // pods in the cache, by service
	version  uint64                      // number of updates of pods
	leaving  map[string]*Service         // services that are gone, and whose clusters linger
	envoys   map[*fronts]bool            // those that are connected
	retired  map[netip.Addr]bool         // Envoys that should have no listeners
}

func newContent(a *acks) content {
	return content{
		clusters: cache.NewLinearCache(resource.ClusterType), pods: cache.NewLinearCache(resource.EndpointType),
		acks: a, ready: make(chan struct{}), services: map[string]Service{}, sent: map[string][]netip.AddrPort{},
		leaving: map[string]*Service{}, envoys: map[*fronts]bool{}, retired: map[netip.Addr]bool{},
	}
}

// join returns the resources of an Envoy that has connected, until it leaves.
func (c *content) join(p Proxy) *fronts {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := newFronts(p)
	c.envoys[f] = true
	return f
}

// connected returns the addresses of the Envoys that are connected.
func (c *content) connected() (all []netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.envoys {
		all = append(all, f.proxy.Addr)
	}
	return all
}

// leave reverses join.
func (c *content) leave(f *fronts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.envoys, f)
	_ = c.updatePods() // what cannot be marshalled is an error of set
}

// took records that an Envoy has clusters, so that it gets the listeners and routes that lead to them.
func (c *content) took(f *fronts, clusters []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range clusters {
		f.clusters[name] = true
	}
	return errors.Join(f.update(c.services, c.retired[f.proxy.Addr]), c.updatePods())
}

// tookRoutes records that an Envoy has the routes up to a version.
func (c *content) tookRoutes(f *fronts, version uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.took(version)
	return c.updatePods()
}

// follow records for which services an Envoy asks for routes, and for which it no longer does.
func (c *content) follow(f *fronts, services, noLonger []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.follow(services, noLonger)
	return c.updatePods()
}

// lost records that an Envoy is about to lose clusters.
func (c *content) lost(f *fronts, clusters []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range clusters {
		delete(f.clusters, name)
	}
}

// retire removes the listeners of an Envoy, or restores them.
func (c *content) retire(at netip.Addr, retired bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired[at] == retired {
		return
	}
	if retired {
		c.retired[at] = true
	} else {
		delete(c.retired, at)
	}
	_ = c.updateFronts() // what cannot be marshalled is an error of set
}

// updateFronts gives Envoys the listeners and routes of the present services. c.mu is held.
func (c *content) updateFronts() (err error) {
	for f := range c.envoys {
		err = errors.Join(err, f.update(c.services, c.retired[f.proxy.Addr]))
	}
	return err
}

// updatePods gives Envoys the present pods. c.mu is held.
//
// The pods of a service that was a revision stay until no Envoy has a route to it any more: a request that Envoy routes
// there would find no pod, and be refused at its service address if the service is being removed. An Envoy's main
// thread passes changes on to the others in the order in which it acknowledges them, so each thread has the routes
// first.
func (c *content) updatePods() error {
	put, held := resources{}, false
	for name, s := range c.services {
		sent, known := c.sent[name]
		switch {
		case !s.Traffic.Empty() || known && slices.Equal(sent, s.Pods):
		case known && c.isLeft(name):
			held = true
		default:
			put[podsOf(name)], c.sent[name] = assignment(podsOf(name), s.Pods), s.Pods
		}
	}
	if len(put) > 0 {
		c.version++ // as the cache does
		c.acks.expect(c.version)
	}
	c.acks.hold(held)
	return change(c.pods, put, nil)
}

// isLeft reports whether no service routes requests to a revision any more, but Envoys may not know that yet. c.mu is
// held.
func (c *content) isLeft(revision string) bool {
	for _, s := range c.services {
		if s.Traffic.leadsTo(revision) {
			return false
		}
	}
	return c.leadsTo(revision)
}

// leadsTo reports whether routes of any Envoy may lead to a revision. c.mu is held.
func (c *content) leadsTo(revision string) bool {
	for f := range c.envoys {
		if f.leadsTo(revision) {
			return true
		}
	}
	return false
}

// set changes the caches to these services.
func (c *content) set(services []Service) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[string]Service, len(services))
	clusterPut := resources{}
	for _, s := range services {
		s.Pods = slices.SortedFunc(slices.Values(s.Pods), netip.AddrPort.Compare)
		s.Traffic.Revisions = slices.Clone(s.Traffic.Revisions)
		next[s.Name] = s
		if !s.Traffic.Empty() {
			continue
		}
		old, known := c.services[s.Name]
		known = known && old.Traffic.Empty()
		if gone := c.leaving[s.Name]; gone != nil { // it is back: Envoys still have its resources
			old, known = *gone, true
			delete(c.leaving, s.Name)
		}
		if !known || !old.sameListener(s) {
			for _, cl := range clusters(&s) {
				clusterPut[cl.Name] = cl
			}
		}
	}
	for name, old := range c.services {
		if now, still := next[name]; old.Traffic.Empty() && !(still && now.Traffic.Empty()) {
			c.removeLater(old)
		}
	}
	c.services = next
	err := errors.Join(c.updateFronts(), c.updatePods(), change(c.clusters, clusterPut, nil))
	if err != nil {
		return fmt.Errorf("configuring Envoy: %w", err)
	}
	c.once.Do(func() { close(c.ready) })
	return nil
}

// removeLater removes the clusters of a service once they have lingered and no route leads there, unless the service is
// back by then. c.mu is held.
func (c *content) removeLater(s Service) {
	name := s.Name
	c.leaving[name] = &s
	var later *time.Timer
	later = time.AfterFunc(clustersLinger, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.leaving[name] != &s { // it is back, and may have gone again
			return
		}
		if c.leadsTo(name) {
			later.Reset(clustersLinger)
			return
		}
		delete(c.leaving, name)
		delete(c.sent, name)
		c.version++
		// There is nothing that could not be marshalled.
		_ = change(c.pods, nil, []string{podsOf(name)})
		_ = change(c.clusters, nil, clustersOf(name))
	})
}
