// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/events"
	apievents "github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"
)

// watchPause is the pause before events are asked for again of a containerd that has ended.
const watchPause = time.Second

// watchImages follows images that other processes load, pull or remove, as 'wangell image' does, until Close: the next
// pod looks at what their names stand for.
func (r *Runtime) watchImages() {
	for r.ctx.Err() == nil {
		r.followImages()
		select {
		case <-r.ctx.Done():
		case <-time.After(watchPause):
		}
	}
}

// followImages returns when containerd ends, or with Close.
func (r *Runtime) followImages() {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	stream, failed := r.client.EventService().Subscribe(ctx,
		fmt.Sprintf("namespace==%s,topic~=^/images/", r.cfg.Namespace))
	r.images.forgetAll() // what happened before is not reported
	for {
		select {
		case e := <-stream:
			if name := imageOfEvent(e); name != "" {
				r.images.forget(name)
				r.keeper.kick() // prepared pods of the image are made anew
			}
		case <-failed:
			return
		}
	}
}

// imageOfEvent returns the name of the image that an event is about; empty if it is about none.
func imageOfEvent(e *apievents.Envelope) string {
	if e == nil {
		return ""
	}
	got, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		return ""
	}
	switch v := got.(type) {
	case *events.ImageCreate:
		return v.Name
	case *events.ImageUpdate:
		return v.Name
	case *events.ImageDelete:
		return v.Name
	}
	return ""
}

// forgetAll makes the next ensure of each image ask containerd again.
func (c *imageCache) forgetAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.known)
}
