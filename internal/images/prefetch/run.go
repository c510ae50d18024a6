// SPDX-License-Identifier: Apache-2.0

package prefetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
)

// reasonNotPresent is the reason of an image that is missing and may not be pulled.
const reasonNotPresent = "NotPresent"

// Run keeps the images until ctx ends, which cancels pulls. Pins stay: see Release.
func (k *Keeper) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.more:
		case <-timer.C:
		}
		if wait := k.begin(ctx, &work, time.Now()); wait > 0 {
			timer.Reset(wait)
		}
	}
}

// begin starts the work that is due, and returns the time until more is due; 0 if notify will be called first.
func (k *Keeper) begin(ctx context.Context, work *sync.WaitGroup, now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.busy < parallel {
		e := k.first()
		if e == nil || e.due.After(now) {
			break
		}
		k.busy++
		var own context.Context
		own, e.cancel = context.WithCancel(ctx)
		work.Go(func() { k.handle(own, e) })
	}
	var next time.Time
	if e := k.first(); e != nil && k.busy < parallel {
		next = e.due
	}
	if k.known && k.tidy && !k.tidying {
		if k.tidyAt.After(now) {
			if next.IsZero() || k.tidyAt.Before(next) {
				next = k.tidyAt
			}
		} else {
			k.tidying, k.tidy = true, false
			work.Go(func() { k.clean(ctx) })
		}
	}
	if next.IsZero() {
		return 0
	}
	return max(next.Sub(now), time.Millisecond)
}

// first returns the image that is due first, without those that are being handled. k.mu is held.
func (k *Keeper) first() (e *entry) {
	for _, o := range k.entries {
		if o.cancel != nil || o.before != nil {
			continue
		}
		if e == nil || cmp.Or(o.due.Compare(e.due), cmp.Compare(o.want.Ref, e.want.Ref)) < 0 {
			e = o
		}
	}
	return e
}

// handle makes sure of one image.
func (k *Keeper) handle(ctx context.Context, e *entry) {
	k.mu.Lock()
	want, pulled := e.want, e.pulled
	k.mu.Unlock()
	image, pulled, err := k.ensure(ctx, e, want, pulled)
	var pinErr error
	inFull := false
	if err == nil {
		pinErr = k.pin(ctx, want.Ref)
		lazy, known := true, false
		if want.Lazy {
			lazy, known = k.cfg.Store.LazyFormat(ctx, want.Ref)
		}
		inFull = known && !lazy
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	ended := ctx.Err() != nil
	e.cancel()
	e.cancel = nil
	k.busy--
	if e.next != nil {
		e.next.before, e.next = nil, nil
	}
	k.notify()
	if k.entries[want.Ref] != e {
		k.tidy = true // it may have been pinned after it left the set
		return
	}
	if e.want != want {
		return // and due at once
	}
	e.pulled = pulled
	if ended {
		return
	}
	bad := err == nil && want.Lazy && e.badFor.After(time.Now())
	if bad {
		k.set(e, e.bad)
	} else if err == nil {
		k.set(e, present(image, inFull))
	} else if e.report.State != wire.ImagePresent || status.Code(err) != codes.Unavailable {
		k.set(e, failure(err)) // unless the runtime is only being restarted
	}
	if err == nil && pinErr == nil {
		e.pause, e.due = 0, time.Now().Add(k.cfg.LookAgain)
		if bad {
			e.due = e.badFor
		}
	} else {
		e.pause = backoff.Next(e.pause, k.cfg.FirstRetry, k.cfg.LastRetry)
		e.due = time.Now().Add(e.pause)
	}
	if pinErr != nil {
		k.cfg.Log.Warn("image is not kept from garbage collection", "image", want.Ref, "error", pinErr)
	}
	if e.again {
		e.again, e.due = false, time.Time{}
	}
}

// ensure looks for an image and pulls it if necessary. pulled is whether it was pulled under its present revision.
func (k *Keeper) ensure(ctx context.Context, e *entry, want wire.WantedImage, pulled bool) (cri.Image, bool, error) {
	image, found, err := k.cfg.Store.Look(ctx, want.Ref)
	again := want.Policy == wire.ImageAlways && !pulled
	switch {
	case err == nil && want.Lazy:
		err = k.cfg.Store.LazyReady(ctx)
	case err == nil && found:
		found, err = k.cfg.Store.Whole(ctx, want.Ref)
	}
	switch {
	case err != nil || found && !again:
		return image, pulled, err
	case want.Policy == wire.ImageNever:
		return image, false, errNever
	}
	begin := time.Now()
	reported := k.reportPull(e)
	endProgress := k.tellProgress(ctx, e, want.Ref, begin)
	if want.Lazy {
		err = k.cfg.Store.PullLazily(ctx, want.Ref)
	} else {
		err = k.cfg.Store.Pull(ctx, want.Ref)
	}
	endProgress()
	reported()
	if ctx.Err() != nil {
		return image, pulled, ctx.Err()
	}
	ended := time.Now()
	k.metrics.pulled(err, ended.Sub(begin))
	if err != nil {
		k.cfg.Log.Warn("image cannot be pulled", "image", want.Ref, "error", err, "took", time.Since(begin))
		return image, pulled, err
	}
	k.cfg.Log.Info("image pulled ahead of need", "image", want.Ref, "took", time.Since(begin))
	if bytes, last, known := k.cfg.Store.Fetched(ctx, want.Ref, begin); known {
		k.metrics.fetched(bytes, begin, last, ended)
	}
	image, found, err = k.cfg.Store.Look(ctx, want.Ref)
	if err == nil && !found {
		err = fmt.Errorf("pulled, but the container runtime does not have it")
	}
	return image, err == nil, err
}

// reportPull reports that an image is being pulled. After a failure it waits a moment, as most further tries fail at
// once. The caller calls end after the pull.
func (k *Keeper) reportPull(e *entry) (end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.report.State != wire.ImageFailed {
		k.set(e, wire.ImageReport{State: wire.ImagePulling})
		return func() {}
	}
	ended := false
	later := time.AfterFunc(retryTold, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !ended {
			k.set(e, wire.ImageReport{State: wire.ImagePulling})
		}
	})
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		ended = true
		later.Stop()
	}
}

// tellProgress reports the progress of a pull at intervals, until the caller calls end.
func (k *Keeper) tellProgress(ctx context.Context, e *entry, ref string, began time.Time) (end func()) {
	if k.cfg.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(k.cfg.ProgressEvery)
		defer tick.Stop()
		var last wire.ImagePulled
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			done, total, known := k.cfg.Store.Progress(ctx, ref, began)
			now := wire.ImagePulled{Ref: k.pulledFor(e), Done: done, Total: total}
			if known && now != last && ctx.Err() == nil {
				last = now
				k.cfg.Progress(now)
			}
		}
	})
	return func() { cancel(); telling.Wait() }
}

// pulledFor returns the name of the wanted image that a pull is for.
func (k *Keeper) pulledFor(e *entry) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e.next != nil {
		return e.next.want.Ref
	}
	return e.want.Ref
}

// errNever is the error of an image that may not be pulled.
var errNever = errors.New("not on the node and imagePullPolicy is Never: load it there, or change the policy")

// present is the report of an image on the node. inFull is set if it was pulled in full although it was wanted
// lazily.
func present(image cri.Image, inFull bool) wire.ImageReport {
	r := wire.ImageReport{
		State: wire.ImagePresent, Digest: image.Digest, Size: image.Size, Volumes: reportable(image.Volumes),
	}
	if inFull {
		r.Reason = cri.ReasonNotLazy
		r.Message = "it was pulled in full, because no layer is eStargz or zstd:chunked: " +
			"wangell image convert --compression estargz makes such images"
	}
	return r
}

// reportable returns as many volumes of an image as a report may have.
func reportable(volumes []string) []string {
	left, n := wire.MaxImageText, 0
	for n < min(len(volumes), wire.MaxImageVolumes) && len(volumes[n]) <= left {
		left -= len(volumes[n])
		n++
	}
	return volumes[:n:n]
}

// failure is the report of an image that could not be ensured.
func failure(err error) wire.ImageReport {
	r := wire.ImageReport{
		State: wire.ImageFailed, Reason: cri.ReasonPullFailed, Message: text.Shorten(err.Error(), maxDetail),
	}
	var known *cri.ImageError
	switch {
	case errors.As(err, &known):
		r.Reason = known.Reason
	case errors.Is(err, errNever):
		r.Reason = reasonNotPresent
	}
	return r
}
