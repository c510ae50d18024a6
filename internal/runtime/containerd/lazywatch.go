// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/images/lazy/failures"
)

// causeLost is the cause of the exit of a pod whose files are gone.
const causeLost = "killed, because " + snapshotterProgram + " has ended and its files are lost with it"

// clockStep bounds the error of the start times of processes.
const clockStep = monotime.Time(20 * time.Millisecond)

// findLazy finds the snapshots that lazy pulls of an earlier process have left. It only logs a failure, because
// services with full pulls do not need them.
func (r *Runtime) findLazy(ctx context.Context) {
	if r.own != nil && !r.own.lazy.used() {
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

// watchFailures restarts pods whose files cannot be fetched, until Close: each is killed with the reason as its
// cause, and its image is pulled in full for the next one.
func (r *Runtime) watchFailures() {
	for r.ctx.Err() == nil {
		// After an error, the snapshotter has ended, which watchLazy handles.
		_ = failures.Watch(r.ctx, failures.Socket(r.lazy.inUse()), r.failed)
		select {
		case <-r.ctx.Done():
		case <-time.After(retryEvery):
		}
	}
}

// failed ends the pods that use an unreadable layer.
func (r *Runtime) failed(f failures.Failure) {
	cause := fmt.Sprintf("killed, because %v: the next pod needs the complete image; check that this machine reaches the "+
		"registry", f)
	err := r.killLazy(f.At, cause, func(id string) bool {
		name, uses, err := r.usesLayer(r.ctx, id, f.Layer)
		if err != nil {
			r.cfg.Log.Warn("cannot find out whether a pod uses a layer that cannot be fetched", "pod", id, "error", err)
		}
		if uses {
			r.images.pullInFull(name)
		}
		return uses
	})
	if err != nil {
		r.cfg.Log.Warn("pods whose files cannot be fetched cannot be killed", "error", err)
	}
}

// usesLayer returns the name of a pod's image, and whether the image has a layer.
func (r *Runtime) usesLayer(ctx context.Context, id, layer string) (image string, uses bool, err error) {
	c, err := r.client.ContainerService().Get(ctx, id)
	if err != nil {
		return "", false, native(err)
	}
	got, err := r.client.ImageService().Get(ctx, c.Image)
	if err != nil {
		return "", false, native(err)
	}
	m, err := images.Manifest(ctx, r.client.ContentStore(), got.Target, client.NewImage(r.client, got).Platform())
	if err != nil {
		return "", false, native(err)
	}
	uses = slices.ContainsFunc(m.Layers, func(d ocispec.Descriptor) bool { return d.Digest.String() == layer })
	return c.Image, uses, nil
}

// watchLazy kills pods whose files are lost because the snapshotter has ended, until Close. The kernel never gives
// them back: a mount belongs to the process that made it, and overlayfs keeps using the old mount. The pods' services
// recover as after any crash.
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

// killLost kills the lazy pods that were started before a time, because the snapshotter has ended.
func (r *Runtime) killLost(before monotime.Time) error {
	return r.killLazy(before, causeLost, func(string) bool { return true })
}

// killLazy kills lazy pods that were started before a time, with a cause.
func (r *Runtime) killLazy(before monotime.Time, cause string, which func(id string) bool) error {
	var old, lost []string
	r.mu.Lock()
	for id, p := range r.pods {
		if p.snapshotter == lazySnapshotter && !p.exited && p.Started != 0 && p.Started < before {
			old = append(old, id)
		}
	}
	r.mu.Unlock()
	for _, id := range old {
		if which(id) {
			lost = append(lost, id)
		}
	}
	r.mu.Lock()
	for _, id := range lost {
		if p := r.pods[id]; p != nil {
			p.lost = cause
		}
	}
	r.mu.Unlock()
	var errs []error
	for _, id := range lost {
		r.cfg.Log.Warn("pod loses its files: "+cause, "pod", id)
		if err := r.signal(r.ctx, id, unix.SIGKILL, true); err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}
