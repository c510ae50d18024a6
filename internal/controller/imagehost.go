// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"iter"
	"time"

	"wangell.loutres.me/internal/controller/images"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// imageHost is the controller as the planner of images sees it: images.Host.
type imageHost struct {
	*loop
	workers *workers
	engine  *engine
}

func (h imageHost) Idle() bool                          { return h.idle() }
func (h imageHost) Post(f func())                       { h.post(f) }
func (h imageHost) After(d time.Duration, f func())     { h.after(d, f) }
func (h imageHost) Go(f func())                         { h.workers.group.Go(f) }
func (h imageHost) Context() context.Context            { return h.workers.ctx }
func (h imageHost) Send(session uint64, m wire.Message) { h.engine.daemons.send(session, m) }

func (h imageHost) Services() iter.Seq[*images.Service] {
	return func(yield func(*images.Service) bool) {
		for _, s := range h.engine.table.services {
			if !s.machine.Deleted() && !yield(&s.images) {
				return
			}
		}
	}
}

func (h imageHost) find(i *images.Service) *service {
	if s := h.engine.table.services[i.Key()]; s != nil && &s.images == i && !s.machine.Deleted() {
		return s
	}
	return nil
}

func (h imageHost) Has(i *images.Service) bool { return h.find(i) != nil }

func (h imageHost) Changed(i *images.Service) {
	if s := h.find(i); s != nil {
		h.engine.changed.check(s)
	}
}

func (h imageHost) Failed(key runtime.Key, st images.ImageStatus) {
	h.engine.events.emit(Event{
		Time: time.Now(), Kind: EventImages, Service: key, Severity: SeverityWarning, Text: st.Message,
	})
}
