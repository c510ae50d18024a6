// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"github.com/containerd/containerd/api/types"

	"wangell.loutres.me/api/v1alpha1"
)

// container is a container that is created in containerd but not started: a record, a snapshot and a folder.
type container struct {
	id      string
	service v1alpha1.Key
	hash    string
	image   imageInfo
	rootfs  []*types.Mount
	// stopSignal is spec.stopSignal, or the image's STOPSIGNAL; empty means SIGTERM.
	stopSignal string
	// uid and gid are those of its process; persistent volumes that are made belong to them.
	uid, gid int
}

// readyContainers records which services should have a ready container, and which have one. It is guarded by
// Runtime.mu.
type readyContainers struct {
	limit int
	// services should have a ready container; the most recently used comes first.
	services   []*v1alpha1.WangellService
	containers map[v1alpha1.Key]*container
	// making has a channel for each container that is being made, closed when it is ready or has failed.
	making map[v1alpha1.Key]chan struct{}
}

func (c *readyContainers) init(limit int) {
	c.limit, c.containers, c.making = limit, map[v1alpha1.Key]*container{}, map[v1alpha1.Key]chan struct{}{}
}

func (c *readyContainers) index(k v1alpha1.Key) int {
	for i, s := range c.services {
		if v1alpha1.KeyOf(s) == k {
			return i
		}
	}
	return -1
}

// use makes s the most recently used service.
func (c *readyContainers) use(s *v1alpha1.WangellService) {
	if i := c.index(v1alpha1.KeyOf(s)); i >= 0 {
		c.services = append(c.services[:i], c.services[i+1:]...)
	}
	c.services = append([]*v1alpha1.WangellService{s}, c.services...)
	c.services = c.services[:min(len(c.services), c.limit)]
}

// add appends s to the services if there is room, and reports whether it should have a ready container.
func (c *readyContainers) add(s *v1alpha1.WangellService) bool {
	if i := c.index(v1alpha1.KeyOf(s)); i >= 0 {
		c.services[i] = s
		return true
	}
	if len(c.services) >= c.limit {
		return false
	}
	c.services = append(c.services, s)
	return true
}

// remove drops a service from the list. Its container stays.
func (c *readyContainers) remove(k v1alpha1.Key) {
	if i := c.index(k); i >= 0 {
		c.services = append(c.services[:i], c.services[i+1:]...)
	}
}

// next returns a service that should have a ready container and has none; nil if there is none.
func (c *readyContainers) next() *v1alpha1.WangellService {
	for _, s := range c.services {
		if k := v1alpha1.KeyOf(s); c.containers[k] == nil && c.making[k] == nil {
			return s
		}
	}
	return nil
}

// drop removes the matching containers from the set and returns them.
func (c *readyContainers) drop(match func(*container) bool) []*container {
	var dropped []*container
	for k, one := range c.containers {
		if match(one) {
			delete(c.containers, k)
			dropped = append(dropped, one)
		}
	}
	return dropped
}
