// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// keep does the background work, in small steps, until Close.
func (r *Runtime) keep() {
	r.keeper.kick()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.keeper.wake:
		case <-timer.C:
		}
		for r.ctx.Err() == nil {
			quiet, wait := r.keeper.quiet(time.Now())
			if !quiet {
				if wait > 0 {
					timer.Reset(wait)
				}
				break
			}
			more, err := r.keepOne(r.ctx)
			if err != nil && r.ctx.Err() == nil {
				r.cfg.Log.Warn("cannot prepare for the next wake; trying again", "error", err)
				timer.Reset(keeperRetry)
				break
			}
			if !more {
				if r.prepares() {
					timer.Reset(preparedCheck)
				}
				break
			}
		}
	}
}

// keepOne makes one network or container, or removes the remains of one pod. It returns false if there is nothing to
// do.
func (r *Runtime) keepOne(ctx context.Context) (bool, error) {
	if made, err := r.nets.Refill(); made || err != nil {
		return made, err
	}
	if r.keepPrepared(ctx, time.Now()) {
		return true, nil
	}
	r.mu.Lock()
	s := r.ready.next()
	var left string
	for id := range r.garbage {
		left = id
		break
	}
	r.mu.Unlock()
	if s != nil {
		info, err := r.images.ensureImage(ctx, s, s.Spec.Image, s.Spec.PullsLazily(), corev1.PullNever, nil)
		if err == nil {
			err = r.makeReady(ctx, s, info)
		}
		if err != nil {
			// The service's next start makes the container, and returns the error.
			r.mu.Lock()
			r.ready.remove(v1alpha1.KeyOf(s))
			r.mu.Unlock()
		}
		return true, err
	}
	if left == "" {
		return false, nil
	}
	if err := r.purge(ctx, left); err != nil {
		return false, err
	}
	r.mu.Lock()
	delete(r.garbage, left)
	r.mu.Unlock()
	return true, nil
}
