// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// clustersLinger is how long Envoys keep the clusters of a service that is gone. Envoy does not report when all its
// threads and listeners have followed a change, and a request for a cluster that is gone gets 503.
const clustersLinger = 5 * time.Second

// content holds the resources for Envoys. Only changed ones are made anew.
type content struct {
	clusters, pods *cache.LinearCache // of all Envoys
	ready          chan struct{}      // closed by the first set
	once           sync.Once

	mu       sync.Mutex
	services map[string]Service
	version  uint64              // number of updates of pods
	leaving  map[string]*Service // services that are gone, and whose clusters linger
	envoys   map[*fronts]bool    // those that are connected
	retired  map[netip.Addr]bool // Envoys that should have no listeners
}

func newContent() content {
	return content{
		clusters: cache.NewLinearCache(resource.ClusterType), pods: cache.NewLinearCache(resource.EndpointType),
		ready: make(chan struct{}), services: map[string]Service{}, leaving: map[string]*Service{},
		envoys: map[*fronts]bool{}, retired: map[netip.Addr]bool{},
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

// leave reverses join.
func (c *content) leave(f *fronts) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.envoys, f)
}

// took records that an Envoy has clusters, so that it gets the listeners and routes that lead to them.
func (c *content) took(f *fronts, clusters []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range clusters {
		f.clusters[name] = true
	}
	return f.update(c.services, c.retired[f.proxy.Addr])
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

// set changes the caches to these services.
func (c *content) set(services []Service, a *acks) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[string]Service, len(services))
	clusterPut, podPut := resources{}, resources{}
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
		if !known || !old.samePods(s) {
			podPut[podsOf(s.Name)] = assignment(podsOf(s.Name), s.Pods)
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
	if len(podPut) > 0 {
		c.version++ // as the cache does
		a.expect(c.version)
	}
	err := errors.Join(change(c.pods, podPut, nil), change(c.clusters, clusterPut, nil), c.updateFronts())
	if err != nil {
		return fmt.Errorf("configuring Envoy: %w", err)
	}
	c.once.Do(func() { close(c.ready) })
	return nil
}

// removeLater removes the clusters of a service once they have lingered, unless the service is back by then. c.mu is
// held.
func (c *content) removeLater(s Service) {
	name := s.Name
	c.leaving[name] = &s
	time.AfterFunc(clustersLinger, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.leaving[name] != &s { // it is back, and may have gone again
			return
		}
		delete(c.leaving, name)
		c.version++
		// There is nothing that could not be marshalled.
		_ = change(c.pods, nil, []string{podsOf(name)})
		_ = change(c.clusters, nil, []string{name, podsOf(name), wakeOf(name)})
	})
}

// resources are resources of one kind, by name.
type resources = map[string]types.Resource

// change changes a cache, if there is something to change.
func change(c *cache.LinearCache, put resources, del []string) error {
	if len(put)+len(del) == 0 {
		return nil
	}
	return c.UpdateResources(put, del)
}
