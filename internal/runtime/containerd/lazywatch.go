// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// causeLost is the cause of the exit of a pod whose files are gone.
const causeLost = "killed, because " + snapshotterProgram + " has ended and its files are lost with it"

// clockStep bounds the error of the start times of processes.
const clockStep = monotime.Time(20 * time.Millisecond)

// findLazy makes the snapshots of lazy pulls of an earlier process known. What cannot be used is logged: services with
// full pulls do not need it.
func (r *Runtime) findLazy(ctx context.Context) {
	if r.own != nil && !r.own.usedLazy() {
		return
	}
	if r.own == nil {
		if _, err := r.lazy.find(ctx); err != nil {
			return
		}
	}
	if err := r.lazy.ready(ctx); err != nil {
		r.cfg.Log.Warn("images that were pulled lazily cannot be used", "error", err)
	}
}

// snapshottersOf returns the snapshotters that may have the snapshot of a pod.
func (r *Runtime) snapshottersOf(id string) []string {
	r.mu.Lock()
	p := r.pods[id]
	r.mu.Unlock()
	if p != nil && !p.lazy {
		return []string{snapshotter}
	}
	return r.lazy.snapshotters()
}

// watchLazy kills pods whose files are lost because the snapshotter has ended, until Close. The kernel never gives them
// back: a mount belongs to the process that made it, and overlayfs keeps using the old mount. The pods' services go on
// as after any crash.
func (r *Runtime) watchLazy() {
	socket := r.lazy.inUse()
	for r.ctx.Err() == nil {
		again := retryEvery
		if p, err := servedBy(socket); err == nil {
			started, err := processStart(uint32(p.PID()))
			if err == nil {
				err = r.killLost(started - clockStep) // of an earlier one
			}
			if err == nil {
				select {
				case <-p.Ended():
					err = r.killLost(monotime.Now())
				case <-r.ctx.Done():
				}
			}
			if err != nil && r.ctx.Err() == nil {
				r.cfg.Log.Warn("pods that have lost their files cannot be killed; trying again", "error", err)
			}
			p.Close()
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(again):
		}
	}
}

// killLost kills the lazy pods that were started before a time, and drops the lazy containers that are ready.
func (r *Runtime) killLost(before monotime.Time) error {
	var lost []string
	r.mu.Lock()
	for id, p := range r.pods {
		if p.lazy && !p.exited && p.Started != 0 && p.Started < before {
			p.lost = true
			lost = append(lost, id)
		}
	}
	r.mu.Unlock()
	var errs []error
	for _, id := range lost {
		r.cfg.Log.Warn("pod is killed: "+snapshotterProgram+" has ended, and its files are lost with it", "pod", id)
		if err := r.signal(r.ctx, id, unix.SIGKILL, true); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Runtime) isLost(p *pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.lost
}

// createAgain creates a container from a lazy image after a failure: the snapshotter may just be restarted. If it
// cannot mount the image, as after a restart of the machine while the registry does not answer, the image is pulled in
// full.
func (r *Runtime) createAgain(ctx context.Context, s *v1alpha1.WangellService, info imageInfo, why error) (c *container,
	err error) {
	if errors.Is(why, runtime.ErrUnavailable) {
		err := patiently(ctx, func() error { c, why = r.createContainer(ctx, s, info); return why })
		if err == nil {
			return c, nil
		}
	}
	r.cfg.Log.Warn("image that was pulled lazily cannot be used; it is pulled in full", "service", runtime.KeyOf(s),
		"image", s.Spec.Image, "error", why)
	r.images.forget(s.Spec.Image)
	if info, err = r.images.ensureImage(ctx, s.Spec.Image, false, s.Spec.ImagePullPolicy, nil); err != nil {
		return nil, errors.Join(why, err)
	}
	return r.createContainer(ctx, s, info)
}
