// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/types"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
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
	// uid and gid are the IDs of its process; new persistent volumes belong to them.
	uid, gid int
	// kept are the volumes of the images that outlive the pod.
	kept []imageVolume
}

// readyContainers records which services should have a ready container, and which have one. It is guarded by
// Runtime.mu.
type readyContainers struct {
	limit int
	// services lists the services that should have a ready container, the most recently used first.
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

// Prepare ensures that the image of s is on the machine. It also makes the next container ready for recently used
// services, and for others while there are fewer than Config.ReadyContainers.
func (r *Runtime) Prepare(ctx context.Context, s *v1alpha1.WangellService, progress runtime.Progress) error {
	info, err := r.images.ensure(ctx, s, progress)
	if err != nil {
		return err
	}
	if err := r.ensureMembers(ctx, s, progress); err != nil {
		return err
	}
	r.mu.Lock()
	wanted := r.ready.add(s)
	r.prepared.want(s)
	r.mu.Unlock()
	r.keeper.kick()
	r.discard(r.staleReady(s, info))
	if !wanted {
		return nil
	}
	return r.makeReady(ctx, s, info)
}

// Forget removes the ready container of a service. Its log stays.
func (r *Runtime) Forget(ctx context.Context, k v1alpha1.Key) error {
	r.mu.Lock()
	r.ready.remove(k)
	delete(r.prepared.services, k)
	making := r.ready.making[k]
	r.mu.Unlock()
	if making != nil {
		<-making
	}
	if err := r.removePrepared(ctx, func(p *preparedPod) bool { return p.Service == k }); err != nil {
		return fmt.Errorf("forget service %s: %w", k, err)
	}
	for _, c := range r.dropReady(func(c *container) bool { return c.service == k }) {
		if err := r.removePod(ctx, c.id, ""); err != nil {
			r.remember(c.id)
			return fmt.Errorf("forget service %s: %w", k, err)
		}
	}
	return nil
}

// makeReady makes a container for s unless it has one or one is being made.
func (r *Runtime) makeReady(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) error {
	k := v1alpha1.KeyOf(s)
	r.mu.Lock()
	if r.ready.containers[k] != nil || r.ready.making[k] != nil {
		r.mu.Unlock()
		return nil
	}
	made := make(chan struct{})
	r.ready.making[k] = made
	r.mu.Unlock()
	c, err := r.createContainer(ctx, s, info)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.ready.making, k)
	close(made)
	if err != nil {
		return fmt.Errorf("service %s: %w", k, err)
	}
	if r.ready.index(k) < 0 { // forgotten, or displaced by more recent services, while it was made
		r.garbage[c.id] = true
		r.keeper.kick()
		return nil
	}
	r.ready.containers[k] = c
	return nil
}

// takeReady returns the ready container of s, after waiting for one that is being made; nil if there is none that
// matches. It makes s the most recently used service.
func (r *Runtime) takeReady(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) *container {
	k := v1alpha1.KeyOf(s)
	r.mu.Lock()
	making := r.ready.making[k]
	r.mu.Unlock()
	if making != nil {
		select {
		case <-making:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	r.ready.use(s)
	r.mu.Unlock()
	r.discard(r.staleReady(s, info))
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.ready.containers[k]
	delete(r.ready.containers, k)
	return c
}

// staleReady removes the container of s from the set if it was made for another spec or image, and the containers of
// services that are no longer on the list.
func (r *Runtime) staleReady(s *v1alpha1.WangellService, info imageInfo) []*container {
	k, hash := v1alpha1.KeyOf(s), v1alpha1.Hash(&s.Spec)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready.drop(func(c *container) bool {
		if c.service == k {
			return c.hash != hash || c.image.digest != info.digest || len(c.kept) > 0 && !s.Spec.KeepsImageVolumes()
		}
		return r.ready.index(c.service) < 0
	})
}

func (r *Runtime) dropReady(match func(*container) bool) []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready.drop(match)
}

// discard removes containers in the background.
func (r *Runtime) discard(list []*container) {
	for _, c := range list {
		r.remember(c.id)
	}
}
