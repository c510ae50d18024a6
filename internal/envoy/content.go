// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// content is what Envoys are to have. Only what changes is made anew.
type content struct {
	clusters, pods, routes *cache.LinearCache
	ready                  chan struct{} // closed by the first set
	once                   sync.Once

	mu       sync.Mutex
	services map[string]Service
	version  uint64                         // of pods: how many updates it had
	proxies  map[netip.Addr]*proxyListeners // of the Envoys that are connected
	retired  map[netip.Addr]bool            // Envoys that are to have no listeners
}

// proxyListeners are the listeners of one Envoy.
type proxyListeners struct {
	proxy   Proxy
	cache   *cache.LinearCache
	streams int // a restarted Envoy may overlap its predecessor
}

func newContent() content {
	return content{
		clusters: cache.NewLinearCache(resource.ClusterType), pods: cache.NewLinearCache(resource.EndpointType),
		routes: cache.NewLinearCache(resource.RouteType),
		ready:  make(chan struct{}), services: map[string]Service{}, proxies: map[netip.Addr]*proxyListeners{},
		retired: map[netip.Addr]bool{},
	}
}

// join returns the listeners of an Envoy that has connected, until it leaves.
func (c *content) join(proxy Proxy) *cache.LinearCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.proxies[proxy.Addr]
	if p == nil {
		p = &proxyListeners{proxy: proxy, cache: cache.NewLinearCache(resource.ListenerType)}
		if !c.retired[proxy.Addr] {
			p.cache.SetResources(c.listeners(proxy))
		}
		c.proxies[proxy.Addr] = p
	}
	p.streams++
	return p.cache
}

// leave reverses join.
func (c *content) leave(at netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.proxies[at]; p != nil {
		if p.streams--; p.streams == 0 {
			delete(c.proxies, at)
		}
	}
}

// listeners returns the listeners of all services in an Envoy. c.mu is held.
func (c *content) listeners(p Proxy) map[string]types.Resource {
	all := make(map[string]types.Resource, len(c.services))
	for name, s := range c.services {
		all[name] = listenerOf(&s, p)
	}
	return all
}

// retire makes an Envoy have no listeners, or have them again.
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
	p := c.proxies[at]
	switch {
	case p == nil:
	case retired:
		p.cache.SetResources(nil)
	default:
		p.cache.SetResources(c.listeners(p.proxy))
	}
}

// set changes the caches to these services.
func (c *content) set(services []Service, a *acks) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[string]Service, len(services))
	type resources = map[string]types.Resource
	clusterPut, podPut, routePut := resources{}, resources{}, resources{}
	var clusterDel, podDel, routeDel, listenerPut, listenerDel []string
	for _, s := range services {
		s.Pods = slices.SortedFunc(slices.Values(s.Pods), netip.AddrPort.Compare)
		s.Traffic.Revisions = slices.Clone(s.Traffic.Revisions)
		next[s.Name] = s
		old, known := c.services[s.Name]
		known = known && old.Traffic.Empty() == s.Traffic.Empty()
		split := !s.Traffic.Empty()
		if !split && (!known || !old.samePods(s)) {
			podPut[podsOf(s.Name)] = assignment(podsOf(s.Name), s.Pods)
		}
		if known && old.sameButPods(s) {
			continue
		}
		if split {
			routePut[s.Name] = routes(&s)
		} else {
			for _, cl := range clusters(&s) {
				clusterPut[cl.Name] = cl
			}
		}
		if !known || !old.sameListener(s) {
			listenerPut = append(listenerPut, s.Name)
		}
	}
	for name, old := range c.services {
		now, still := next[name]
		if !still {
			listenerDel = append(listenerDel, name)
		}
		switch {
		case still && now.Traffic.Empty() == old.Traffic.Empty():
		case old.Traffic.Empty():
			clusterDel, podDel = append(clusterDel, name, podsOf(name), wakeOf(name)), append(podDel, podsOf(name))
		default:
			routeDel = append(routeDel, name)
		}
	}
	c.services = next
	if len(podPut)+len(podDel) > 0 {
		c.version++ // as the cache does
	}
	if len(podPut) > 0 { // what is removed, Envoy no longer asks for
		a.expect(c.version)
	}
	// Listeners come last and go first, since they need clusters and routes.
	err := errors.Join(
		c.changeListeners(nil, listenerDel),
		change(c.pods, podPut, podDel), change(c.clusters, clusterPut, clusterDel), change(c.routes, routePut, nil),
		c.changeListeners(listenerPut, nil), change(c.routes, nil, routeDel),
	)
	if err != nil {
		return fmt.Errorf("configuring Envoy: %w", err)
	}
	c.once.Do(func() { close(c.ready) })
	return nil
}

// changeListeners makes the listeners of services anew, or removes them, in all Envoys that have listeners. c.mu is
// held.
func (c *content) changeListeners(put, del []string) (err error) {
	for at, p := range c.proxies {
		if c.retired[at] {
			continue
		}
		made := make(map[string]types.Resource, len(put))
		for _, name := range put {
			s := c.services[name]
			made[name] = listenerOf(&s, p.proxy)
		}
		err = errors.Join(err, change(p.cache, made, del))
	}
	return err
}

// change changes a cache, if there is something to change.
func change(c *cache.LinearCache, put map[string]types.Resource, del []string) error {
	if len(put)+len(del) == 0 {
		return nil
	}
	return c.UpdateResources(put, del)
}
