// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/runtime"
)

// preparer has the runtime fetch images ahead of need, a few at a time, and forget those of services
// that are gone. Its goroutines live only while there is something to do. Nobody waits for it: a wake
// fetches what it needs by itself.
type preparer struct {
	c      *Controller
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	jobs    []job
	busy    map[runtime.Key]bool // one job a service at a time
	workers int
	stopped bool
}

// job is to prepare a service, or to forget it if want is nil.
type job struct {
	key  runtime.Key
	want *wanted
}

func newPreparer(c *Controller) *preparer {
	p := &preparer{c: c, busy: map[runtime.Key]bool{}}
	p.ctx, p.cancel = context.WithCancel(c.ctx)
	return p
}

func (p *preparer) add(w *wanted)        { p.enqueue(job{w.key, w}) }
func (p *preparer) forget(k runtime.Key) { p.enqueue(job{key: k}) }

func (p *preparer) enqueue(j job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	p.jobs = append(p.jobs, j)
	if p.workers < p.c.cfg.MaxConcurrentPulls {
		p.workers++
		p.group.Go(p.work)
	}
}

// stop gives up what is under way and waits until nothing is.
func (p *preparer) stop() {
	p.mu.Lock()
	p.stopped, p.jobs = true, nil
	p.mu.Unlock()
	p.cancel()
	p.group.Wait()
}

// next takes the first job of a service that has none under way. Without one the worker ends.
func (p *preparer) next(last runtime.Key) (job, bool) {
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
	for last := runtime.Key(""); ; {
		j, ok := p.next(last)
		if !ok {
			return
		}
		p.do(j)
		last = j.key
	}
}

func (p *preparer) do(j job) {
	c := p.c
	if j.want == nil {
		if err := c.cfg.Runtime.Forget(p.ctx, j.key); err != nil && p.ctx.Err() == nil {
			c.report(j.key, SeverityWarning, "what was kept ready cannot be dropped: "+bare(j.key, err))
		}
		return
	}
	err := c.prepare(p.ctx, j.want)
	if p.ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = bare(j.key, err)
		c.report(j.key, SeverityWarning, text+" (tried again when a client comes)")
	}
	c.post(func() {
		if s := c.services[j.key]; s != nil && s.wanted == j.want {
			s.imageErr = text
			c.look(s)
		}
	})
}

// prepare fetches what a service needs, if that is not known to be there.
func (c *Controller) prepare(ctx context.Context, w *wanted) error {
	if w.prepared.Load() {
		return nil
	}
	err := c.cfg.Runtime.Prepare(ctx, w.spec, func(image string, done, total int64) {
		c.hub.emit(Event{Time: time.Now(), Kind: EventPull, Service: w.key, Image: image, Done: done, Total: total})
	})
	if err == nil {
		w.prepared.Store(true)
	}
	return err
}
