// SPDX-License-Identifier: Apache-2.0

package prefetch

import (
	"context"
	"errors"
	"time"
)

// pin keeps an image from garbage collection, if the runtime can do that.
func (k *Keeper) pin(ctx context.Context, ref string) error {
	can, err := k.cfg.Store.Pin(ctx, ref)
	if can || err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.noPins {
		k.noPins = true
		k.cfg.Log.Warn("this container runtime is not containerd: images cannot be kept from kubelet's garbage collection " +
			"from here; see docs/operations/images.md")
	}
	return nil
}

// clean removes the pins of images that are not wanted.
func (k *Keeper) clean(ctx context.Context) {
	err := k.unpin(ctx, func(name string, wanted map[string]bool) bool { return !wanted[name] })
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tidying = false
	if err != nil && ctx.Err() == nil {
		k.tidy, k.tidyAt = true, time.Now().Add(k.cfg.FirstRetry)
		k.cfg.Log.Warn("images that no service needs stay pinned until the next attempt", "error", err)
	}
	k.notify()
}

// Release removes all pins, including those of earlier processes. Run must have ended.
func (k *Keeper) Release(ctx context.Context) error {
	return k.unpin(ctx, func(string, map[string]bool) bool { return true })
}

// unpin removes the pins of images that match. The set may change meanwhile: images that are wanted by then are
// checked again.
func (k *Keeper) unpin(ctx context.Context, match func(name string, wanted map[string]bool) bool) error {
	pinned, err := k.cfg.Store.Pinned(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	wanted := make(map[string]bool, len(k.entries))
	for ref := range k.entries {
		wanted[k.cfg.Store.Name(ref)] = true
	}
	k.mu.Unlock()
	var errs []error
	removed := map[string]bool{}
	for _, name := range pinned {
		if match(name, wanted) {
			errs = append(errs, k.cfg.Store.Unpin(ctx, name))
			removed[name] = true
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for ref, e := range k.entries {
		if removed[k.cfg.Store.Name(ref)] {
			e.again, e.due = e.cancel != nil, time.Time{}
		}
	}
	return errors.Join(errs...)
}
