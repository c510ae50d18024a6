// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// content is what Envoy is to have. Only what changes is made anew.
type content struct {
	clusters, pods, listeners *cache.LinearCache
	ready                     chan struct{} // closed by the first set
	once                      sync.Once

	mu       sync.Mutex
	services map[string]Service
	version  uint64 // of pods: how many updates it had
}

func newContent() content {
	return content{
		clusters: cache.NewLinearCache(resource.ClusterType), pods: cache.NewLinearCache(resource.EndpointType),
		listeners: cache.NewLinearCache(resource.ListenerType),
		ready:     make(chan struct{}), services: map[string]Service{},
	}
}

// set changes the caches to these services.
func (c *content) set(services []Service, a *acks) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[string]Service, len(services))
	type resources = map[string]types.Resource
	clusterPut, podPut, listenerPut := resources{}, resources{}, resources{}
	var clusterDel, podDel, listenerDel []string
	for _, s := range services {
		s.Pods = slices.SortedFunc(slices.Values(s.Pods), netip.AddrPort.Compare)
		next[s.Name] = s
		old, known := c.services[s.Name]
		if !known || !old.samePods(s) {
			podPut[podsOf(s.Name)] = assignment(podsOf(s.Name), s.Pods)
		}
		if known && old.sameButPods(s) {
			continue
		}
		for _, cl := range clusters(&s) {
			clusterPut[cl.Name] = cl
		}
		listenerPut[s.Name] = listenerOf(&s)
	}
	for name := range c.services {
		if _, still := next[name]; !still {
			clusterDel = append(clusterDel, name, podsOf(name), wakeOf(name))
			podDel, listenerDel = append(podDel, podsOf(name)), append(listenerDel, name)
		}
	}
	c.services = next
	if len(podPut)+len(podDel) > 0 {
		c.version++ // as the cache does
	}
	if len(podPut) > 0 { // what is removed, Envoy no longer asks for
		a.expect(c.version)
	}
	// Listeners come last and go first, since they need clusters.
	for _, u := range []struct {
		cache *cache.LinearCache
		put   map[string]types.Resource
		del   []string
	}{
		{c.listeners, nil, listenerDel}, {c.pods, podPut, podDel}, {c.clusters, clusterPut, clusterDel},
		{c.listeners, listenerPut, nil},
	} {
		if len(u.put)+len(u.del) == 0 {
			continue
		}
		if err := u.cache.UpdateResources(u.put, u.del); err != nil {
			return fmt.Errorf("configuring Envoy: %w", err)
		}
	}
	c.once.Do(func() { close(c.ready) })
	return nil
}
