// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// Pauses between tries to stop a pod that the runtime fails to stop.
const (
	firstStopPause = 100 * time.Millisecond
	maxStopPause   = 5 * time.Second
)

// returnPatience is how long the start of a pod that serves already may go on when the pod is to stop.
const returnPatience = 5 * time.Second

// start has the runtime start a pod, on a goroutine of its own.
func (c *Controller) start(s *service, ref lifecycle.Ref) {
	ctx, cancel := context.WithCancel(c.ctx)
	p := &pod{service: s, ref: ref, port: uint16(s.spec.Spec.TargetPort), cancel: cancel}
	s.pods = append(s.pods, p)
	if c.halted {
		return
	}
	w := s.wanted
	c.workers.Go(func() {
		rt, err := c.runStart(ctx, p, w)
		c.post(func() { c.started(p, rt, err) })
	})
}

// runStart waits for a free slot and starts a pod. An image that is not there yet is fetched before:
// those who wait for a registry must not take the slots of those who could start.
func (c *Controller) runStart(ctx context.Context, p *pod, w *wanted) (runtime.Pod, error) {
	if err := c.prepare(ctx, w); err != nil {
		return runtime.Pod{}, err
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return runtime.Pod{}, ctx.Err()
	}
	return c.cfg.Runtime.Start(ctx, w.spec, runtime.StartHooks{
		Phase: func(ph runtime.Phase, at monotime.Time) {
			c.post(func() { c.step(p.service, lifecycle.PhaseEnded{Ref: p.ref, Phase: lifecycle.PhaseName(ph), At: at}) })
		},
		Network: func(rt runtime.Pod) {
			c.post(func() {
				c.register(p, rt)
				c.step(p.service, lifecycle.NetworkReady{Ref: p.ref})
			})
		},
	})
}

// register makes a pod known under the names that the runtime and daemons have for it.
func (c *Controller) register(p *pod, rt runtime.Pod) {
	p.rt = rt
	p.port = cmp.Or(rt.Port, p.port)
	p.id = wireID(rt.ID)
	p.node = cmp.Or(rt.Node, c.cfg.Node)
	c.noteHome(p)
	c.byRuntime[rt.ID] = p
	c.byWire[p.id] = p
}

// wireID is a pod's ID on the wire: the same whenever it is made, for adoption.
func wireID(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return max(h.Sum64(), 1)
}

// drop forgets a pod of which nothing remains, and tells those who wait for that.
func (c *Controller) drop(p *pod) {
	s := p.service
	if c.byRuntime[p.rt.ID] == p {
		delete(c.byRuntime, p.rt.ID)
	}
	if c.byWire[p.id] == p {
		delete(c.byWire, p.id)
	}
	for i, q := range s.pods {
		if q == p {
			s.pods = append(s.pods[:i], s.pods[i+1:]...)
			break
		}
	}
	waiting := s.sleepers[:0]
	for _, w := range s.sleepers {
		if delete(w.refs, p.ref); len(w.refs) == 0 {
			close(w.done)
		} else {
			waiting = append(waiting, w)
		}
	}
	s.sleepers = waiting
}

// started takes what came of a start.
func (c *Controller) started(p *pod, rt runtime.Pod, err error) {
	p.cancel()
	p.returned = true
	switch {
	case err == nil && p.stopping:
		c.register(p, rt)
		c.runStop(p)
	case err == nil:
		c.register(p, rt)
		c.step(p.service, lifecycle.Started{Ref: p.ref})
		if p.early != nil {
			c.podExited(p, *p.early)
		}
	case p.stopping && p.id != 0 && errors.Is(err, runtime.ErrUnavailable):
		c.runStop(p) // the runtime cannot know what is left
	case p.stopping:
		// The machine publishes the pods that are left while the pod is still known here.
		c.step(p.service, lifecycle.StopDone{Ref: p.ref})
		c.drop(p)
	default:
		c.step(p.service, lifecycle.StartFailed{
			Ref: p.ref, Err: errors.New(bare(p.service.key, err)), Retryable: errors.Is(err, runtime.ErrUnavailable),
		})
		if !p.stopping { // else it listened all the same, and is being stopped now
			c.drop(p)
		}
	}
}

// stop has the runtime stop a pod. One that is still being started is stopped when Start returns: at once, unless it serves
// already. A process can listen before the runtime has told that it runs, and it has its grace period for its connections.
func (c *Controller) stop(p *pod, grace time.Duration) {
	if c.halted {
		return
	}
	p.stopping, p.grace = true, grace
	switch {
	case p.returned:
		c.runStop(p)
	case p.served:
		time.AfterFunc(min(grace, returnPatience), p.cancel)
	default:
		p.cancel()
	}
}

func (c *Controller) runStop(p *pod) {
	c.stopWorker(p.service.key, p.rt.ID, p.grace, func() {
		c.step(p.service, lifecycle.StopDone{Ref: p.ref})
		c.drop(p)
	})
}

// stopOrphan stops a pod of no service.
func (c *Controller) stopOrphan(rt runtime.Pod, grace time.Duration) {
	c.orphans++
	c.stopWorker(rt.Service, rt.ID, grace, func() {
		c.orphans--
		c.checkIdle()
	})
}

// stopWorker stops a pod, however often that has to be tried, and then has the loop run done.
func (c *Controller) stopWorker(k runtime.Key, id string, grace time.Duration, done func()) {
	if c.halted {
		return
	}
	c.workers.Go(func() {
		pause := firstStopPause
		for {
			err := c.cfg.Runtime.Stop(c.stopCtx, id, grace)
			if err == nil {
				c.post(done)
				return
			}
			if c.stopCtx.Err() != nil {
				return
			}
			c.report(k, SeverityWarning, fmt.Sprintf("pod %s cannot be stopped, tried again in %s: %s", id, pause, bare(k, err)))
			select {
			case <-time.After(pause):
			case <-c.stopCtx.Done():
				return
			}
			pause = min(2*pause, maxStopPause)
		}
	})
}

// podExited tells a machine that a process ended. That of a pod which is still being started may have ended because the
// runtime itself did: its Start knows, and has the first word, unless the pod serves already.
func (c *Controller) podExited(p *pod, e runtime.Exit) {
	if !p.returned && !p.stopping && p.state != lifecycle.BackendServing {
		p.early = &e
		return
	}
	p.exited = true
	c.step(p.service, lifecycle.PodExited{Ref: p.ref, Code: e.Code, LogTail: e.LogTail})
}

// readExits tells machines of processes that ended.
func (c *Controller) readExits() {
	for {
		select {
		case e, open := <-c.cfg.Runtime.Exits():
			if !open {
				return
			}
			c.post(func() {
				if p := c.byRuntime[e.PodID]; p != nil {
					c.podExited(p, e)
				}
			})
		case <-c.ctx.Done():
			return
		}
	}
}
