// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/upkeep"
)

// Pauses of the keeper: after a wake, while the new process is still busy becoming ready, and after a failure.
const (
	keeperQuiet = 250 * time.Millisecond
	keeperRetry = time.Second
)

// keeper decides when there is time to prepare networks and containers: while no wake is in progress.
type keeper struct {
	wake chan struct{}

	mu       sync.Mutex
	starting int       // wakes in progress
	busyTill time.Time // until then the last of them counts as in progress
}

func (k *keeper) init() { k.wake = make(chan struct{}, 1) }

// kick makes the keeper look for work.
func (k *keeper) kick() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// begin notes that a wake has begun.
func (k *keeper) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starting++
}

// end notes that a wake has ended.
func (k *keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starting--
	k.busyTill = time.Now().Add(keeperQuiet)
	k.kick()
}

// stopped records that a pod was stopped, which means that earlier wakes are over.
func (k *keeper) stopped() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busyTill = time.Time{}
	k.kick()
}

// quiet reports whether there is time now. If not, it returns the pause before the next question; 0 means after the
// next kick.
func (k *keeper) quiet(now time.Time) (bool, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.starting > 0 {
		return false, 0
	}
	wait := k.busyTill.Sub(now)
	return wait <= 0, max(wait, 0)
}

// keepNetworks puts back what others remove of pods' networks, until Close.
func (r *Runtime) keepNetworks() {
	tick := time.NewTicker(upkeep.Interval)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
			_ = r.nets.Keep() // it logs that, and the next look may succeed
		}
	}
}

// Restored returns how often something of pods' networks was put back that somebody else had removed or changed, by
// kind; see podnet.Pool.
func (r *Runtime) Restored() map[string]uint64 { return r.nets.Restored() }

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
