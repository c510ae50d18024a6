// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

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
			return c.hash != hash || c.image.digest != info.digest
		}
		return r.ready.index(c.service) < 0
	})
}

func (r *Runtime) dropReady(match func(*container) bool) []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready.drop(match)
}

// discard has containers removed in the background.
func (r *Runtime) discard(list []*container) {
	for _, c := range list {
		r.remember(c.id)
	}
}
