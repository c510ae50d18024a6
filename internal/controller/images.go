// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller/images"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// imageHost is the controller as the planner of images sees it: images.Host.
type imageHost struct {
	*loop
	workers *workers
	engine  *engine
}

// Idle reports whether the controller has stopped starting and stopping pods.
func (h imageHost) Idle() bool { return h.idle() }

// Post runs f on the loop.
func (h imageHost) Post(f func()) { h.post(f) }

// After runs f on the loop after a time.
func (h imageHost) After(d time.Duration, f func()) { h.after(d, f) }

// Go runs f on a goroutine that the controller's end waits for.
func (h imageHost) Go(f func()) { h.workers.group.Go(f) }

// Context ends with the controller.
func (h imageHost) Context() context.Context { return h.workers.ctx }

// Send queues a message for the daemon of a session.
func (h imageHost) Send(session uint64, m wire.Message) { h.engine.daemons.send(session, m) }

// Services yields the services that are not deleted.
func (h imageHost) Services() iter.Seq[*images.Service] {
	return func(yield func(*images.Service) bool) {
		for _, s := range h.engine.table.services {
			if !s.machine.Deleted() && !yield(&s.images) {
				return
			}
		}
	}
}

// Has reports whether Services yields a service.
func (h imageHost) Has(i *images.Service) bool {
	s := h.engine.table.services[i.Key()]
	return s != nil && &s.images == i && !s.machine.Deleted()
}

// Changed notes that the state of a service's images may have changed.
func (h imageHost) Changed(i *images.Service) {
	if s := h.engine.table.services[i.Key()]; s != nil {
		h.engine.changed.check(s)
	}
}

// Failed tells users why no node gets the images of a service.
func (h imageHost) Failed(key v1alpha1.Key, st status.Images) {
	h.engine.events.emit(status.Event{
		Time: time.Now(), Kind: status.EventImages, Service: key,
		Reason: v1alpha1.EventImageNotReady, Severity: status.SeverityWarning, Text: st.Message,
	})
}

// NotKept tells users which volumes of its images a service loses with each pod.
func (h imageHost) NotKept(key v1alpha1.Key, text string) {
	h.engine.events.report(key, v1alpha1.EventVolumesNotKept, status.SeverityWarning, text)
}

// preparer has the runtime fetch images ahead of need, a few at a time, and forget those of deleted services. Its
// goroutines exist only while there is something to do. A wake does not wait for it: it fetches what it needs itself.
type preparer struct {
	runtime runtime.Runtime
	events  *hub
	limit   int // of images fetched at once
	// pulling is called while the image of a service is fetched, and with nil at the end.
	pulling func(*wanted, *status.Pull)
	// done is called with the reason why the image of a service could not be fetched; empty if it is present.
	done func(w *wanted, reason string)
	// volumes is called with the volumes of its images that a service keeps.
	volumes func(w *wanted, kept []string)

	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	jobs    []job
	busy    map[v1alpha1.Key]bool // one job per service at a time
	workers int
	stopped bool
}

// job is to prepare a service, or to forget it if want is nil.
type job struct {
	key  v1alpha1.Key
	want *wanted
}

func newPreparer(ctx context.Context, rt runtime.Runtime, events *hub, limit int) *preparer {
	p := &preparer{runtime: rt, events: events, limit: limit, busy: map[v1alpha1.Key]bool{}}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// add prepares a service, unless that is left to its wakes.
func (p *preparer) add(w *wanted) {
	if w.spec.Spec.PullsOnCreate() && !w.splits() {
		p.enqueue(job{w.key, w})
	}
}

func (p *preparer) forget(k v1alpha1.Key) { p.enqueue(job{key: k}) }

func (p *preparer) enqueue(j job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.jobs = append(p.jobs, j)
	if p.workers < p.limit {
		p.workers++
		p.group.Go(p.work)
	}
}

// stop cancels all jobs and waits for their end.
func (p *preparer) stop() {
	p.mu.Lock()
	p.stopped, p.jobs = true, nil
	p.mu.Unlock()
	p.cancel()
	p.group.Wait()
}

// next takes the first job of a service that has none in progress. Without one the worker ends.
func (p *preparer) next(last v1alpha1.Key) (job, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.busy, last)
	i := slices.IndexFunc(p.jobs, func(j job) bool { return !p.busy[j.key] })
	if i < 0 {
		p.workers--
		return job{}, false
	}
	j := p.jobs[i]
	if i == 0 {
		p.jobs = p.jobs[1:]
	} else {
		p.jobs = slices.Delete(p.jobs, i, i+1)
	}
	p.busy[j.key] = true
	return j, true
}

func (p *preparer) work() {
	for last := v1alpha1.Key(""); ; {
		j, ok := p.next(last)
		if !ok {
			return
		}
		p.do(j)
		last = j.key
	}
}

func (p *preparer) do(j job) {
	if j.want == nil {
		if err := p.runtime.Forget(p.ctx, j.key); err != nil && p.ctx.Err() == nil {
			text := "what was prepared for it cannot be removed: " + bare(j.key, err)
			p.events.report(j.key, v1alpha1.EventProblem, status.SeverityWarning, text)
		}
		return
	}
	err := p.prepare(p.ctx, j.want)
	if p.ctx.Err() != nil {
		return
	}
	reason := ""
	if err != nil {
		reason = bare(j.key, err)
		p.events.report(j.key, v1alpha1.EventProblem, status.SeverityWarning, reason+" (tried again when a client comes)")
	}
	p.done(j.want, reason)
}

// prepare fetches what a service needs, unless it is known to be present.
func (p *preparer) prepare(ctx context.Context, w *wanted) error {
	if w.prepared.Load() {
		return nil
	}
	var reported atomic.Bool
	err := p.runtime.Prepare(ctx, w.spec, func(image string, done, total int64) {
		p.events.emit(status.Event{
			Time: time.Now(), Kind: status.EventPull, Service: w.key, Image: image, Done: done, Total: total,
		})
		reported.Store(true)
		p.pulling(w, &status.Pull{Image: image, Done: done, Total: total})
	})
	if reported.Load() {
		p.pulling(w, nil)
	}
	if err != nil {
		return err
	}
	if err := p.findVolumes(ctx, w); err != nil {
		return err
	}
	w.prepared.Store(true)
	return nil
}

// findVolumes finds out which volumes the images of a service declare.
func (p *preparer) findVolumes(ctx context.Context, w *wanted) error {
	keeper, ok := p.runtime.(runtime.ImageVolumeKeeper)
	if !ok {
		return nil
	}
	v, err := keeper.ImageVolumes(ctx, w.spec)
	if err != nil {
		return err
	}
	if text := w.spec.Spec.UnkeptVolumes(v.Lost, false); text != "" {
		p.events.report(w.key, v1alpha1.EventVolumesNotKept, status.SeverityWarning, text)
	}
	p.volumes(w, v.Kept)
	return nil
}
