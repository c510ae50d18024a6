// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/runtime"
)

// The keeper's pace: how long after a wake it waits, because the process that was started is still busy
// becoming ready, and how long after something failed.
const (
	keeperQuiet = 250 * time.Millisecond
	keeperRetry = time.Second
)

// keeper tells when there is time to make networks and containers ready: while no wake is under way.
type keeper struct {
	wake chan struct{}

	mu       sync.Mutex
	starting int       // wakes under way
	busyTill time.Time // when the last of them is taken to be over
}

func (k *keeper) init() { k.wake = make(chan struct{}, 1) }

// kick has the keeper look for work.
func (k *keeper) kick() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starting++
}

func (k *keeper) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starting--
	k.busyTill = time.Now().Add(keeperQuiet)
	k.kick()
}

// stopped notes that a pod was stopped: what was started before is over.
func (k *keeper) stopped() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busyTill = time.Time{}
	k.kick()
}

// quiet tells whether there is time now, and if not, in how long to look again; 0 means after the next kick.
func (k *keeper) quiet(now time.Time) (bool, time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.starting > 0 {
		return false, 0
	}
	wait := k.busyTill.Sub(now)
	return wait <= 0, max(wait, 0)
}

// keep does what is to be done in the background, one small thing at a time, until Close.
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
				r.cfg.Log.Warn("cannot make ready for the next wake; it is tried again", "error", err)
				timer.Reset(keeperRetry)
				break
			}
			if !more {
				break
			}
		}
	}
}

// keepOne makes one network or container, or removes one remainder; false if there is nothing to do.
func (r *Runtime) keepOne(ctx context.Context) (bool, error) {
	if made, err := r.nets.Refill(); made || err != nil {
		return made, err
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
		info, err := r.images.ensureImage(ctx, s.Spec.Image, corev1.PullNever, nil)
		if err == nil {
			err = r.makeReady(ctx, s, info)
		}
		if err != nil {
			// It is made when it is wanted, and the error is told then.
			r.mu.Lock()
			if i := r.ready.index(runtime.KeyOf(s)); i >= 0 {
				r.ready.services = append(r.ready.services[:i], r.ready.services[i+1:]...)
			}
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
