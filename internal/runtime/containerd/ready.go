// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// container is one that is created in containerd and not started: a record, a snapshot and a folder.
type container struct {
	id      string
	service runtime.Key
	hash    string
	image   digest.Digest
	rootfs  []*types.Mount
	// stopSignal is what the image wants instead of SIGTERM, empty if nothing.
	stopSignal string
}

// readyContainers knows which services shall have a container ready and which have. It has no lock of its own.
type readyContainers struct {
	limit int
	// services are those that shall, used last first.
	services   []*v1alpha1.WangellService
	containers map[runtime.Key]*container
	// making is closed when the container that is just being made is there, or has failed.
	making map[runtime.Key]chan struct{}
}

func (c *readyContainers) init(limit int) {
	c.limit, c.containers, c.making = limit, map[runtime.Key]*container{}, map[runtime.Key]chan struct{}{}
}

func (c *readyContainers) index(k runtime.Key) int {
	for i, s := range c.services {
		if runtime.KeyOf(s) == k {
			return i
		}
	}
	return -1
}

// use notes that s was used now.
func (c *readyContainers) use(s *v1alpha1.WangellService) {
	if i := c.index(runtime.KeyOf(s)); i >= 0 {
		c.services = append(c.services[:i], c.services[i+1:]...)
	}
	c.services = append([]*v1alpha1.WangellService{s}, c.services...)
	c.services = c.services[:min(len(c.services), c.limit)]
}

// add notes s as one that may be used, if there is room, and tells whether it shall have a container.
func (c *readyContainers) add(s *v1alpha1.WangellService) bool {
	if i := c.index(runtime.KeyOf(s)); i >= 0 {
		c.services[i] = s
		return true
	}
	if len(c.services) >= c.limit {
		return false
	}
	c.services = append(c.services, s)
	return true
}

// next is a service that shall have a container and has none, nil if there is none such.
func (c *readyContainers) next() *v1alpha1.WangellService {
	for _, s := range c.services {
		if k := runtime.KeyOf(s); c.containers[k] == nil && c.making[k] == nil {
			return s
		}
	}
	return nil
}

// drop takes out the containers that match.
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

func (r *Runtime) dropReady(match func(*container) bool) []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready.drop(match)
}

// Prepare makes sure that the image of s is on the machine. For the services used last, and for others as long as
// Config.ReadyContainers is not reached, it also makes the next container ready.
func (r *Runtime) Prepare(ctx context.Context, s *v1alpha1.WangellService, progress runtime.Progress) error {
	info, err := r.images.ensure(ctx, s, progress)
	if err != nil {
		return err
	}
	r.mu.Lock()
	wanted := r.ready.add(s)
	r.mu.Unlock()
	r.discard(r.staleReady(s, info))
	if !wanted {
		return nil
	}
	return r.makeReady(ctx, s, info)
}

// Forget drops the container that is ready for a service. Its log stays.
func (r *Runtime) Forget(ctx context.Context, k runtime.Key) error {
	r.mu.Lock()
	if i := r.ready.index(k); i >= 0 {
		r.ready.services = append(r.ready.services[:i], r.ready.services[i+1:]...)
	}
	making := r.ready.making[k]
	r.mu.Unlock()
	if making != nil {
		<-making
	}
	for _, c := range r.dropReady(func(c *container) bool { return c.service == k }) {
		if err := r.removePod(ctx, c.id, ""); err != nil {
			r.remember(c.id)
			return fmt.Errorf("forget service %s: %w", k, err)
		}
	}
	return nil
}

// makeReady makes a container for s unless there is one or one is being made.
func (r *Runtime) makeReady(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) error {
	k := runtime.KeyOf(s)
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
	if r.ready.index(k) < 0 { // forgotten, or pushed out, while it was made
		r.garbage[c.id] = true
		r.keeper.kick()
		return nil
	}
	r.ready.containers[k] = c
	return nil
}

// takeReady gives the container that is ready for s, waiting for one that is just being made; nil if there is none that
// fits. s becomes the service used last.
func (r *Runtime) takeReady(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) *container {
	k := runtime.KeyOf(s)
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

// staleReady takes out the container of s if it was made for another spec or image, and those of services that
// are no longer among the last used.
func (r *Runtime) staleReady(s *v1alpha1.WangellService, info imageInfo) []*container {
	k, hash := runtime.KeyOf(s), v1alpha1.Hash(&s.Spec)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready.drop(func(c *container) bool {
		if c.service == k {
			return c.hash != hash || c.image != info.digest
		}
		return r.ready.index(c.service) < 0
	})
}

// discard has containers removed in the background.
func (r *Runtime) discard(list []*container) {
	for _, c := range list {
		r.remember(c.id)
	}
}

// remember notes that something of a pod is left, for the keeper to remove.
func (r *Runtime) remember(id string) {
	r.mu.Lock()
	r.garbage[id] = true
	r.mu.Unlock()
	r.keeper.kick()
}
