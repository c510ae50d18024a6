// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// startWatch begins to wait for a pod to listen. s.mu is held.
func (d *daemon) startWatch(s *service, p *pod) error {
	w, err := newListenWatch(p.netns, p.addr)
	if err != nil {
		return fmt.Errorf("%s: %w", describe(s.addr, p.id), err)
	}
	if w.cookie, err = cookieOf(w.probe.fd); err != nil {
		w.close()
		return err
	}
	if d.gate.FollowsListen() {
		if err := d.gate.WatchListen(w.cookie, s.addr, p.id); err != nil {
			w.close()
			return err
		}
	}
	ctx, cancel := context.WithCancel(d.ctx)
	w.cancel = cancel
	p.watch = w
	d.tasks.Go(func() {
		defer w.close()
		if at, ok := w.wait(ctx, d.gate.FollowsListen()); ok {
			d.podListens(s, p, w, at)
		}
	})
	return nil
}

// endWatch stops waiting for a pod, if there is a watch. s.mu is held.
func (d *daemon) endWatch(p *pod) {
	if p.watch == nil {
		return
	}
	p.watch.cancel()
	p.watch = nil
}

// listenEvent passes a LISTEN event of the kernel to the pod's watch.
func (d *daemon) listenEvent(e gate.Event) {
	s := d.service(e.Service)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var watch *listenWatch
	if p := s.pods[e.Pod]; p != nil {
		watch = p.watch
	} else if gate.IsFront(e.Pod) && e.Pod == s.front.id {
		watch = s.front.watch
	}
	if watch != nil {
		select {
		case watch.events <- e.At:
		default: // earlier events have not been looked at yet
		}
	}
}

// podListens makes a pod that has begun to listen serve, and reports it.
func (d *daemon) podListens(s *service, p *pod, w *listenWatch, at monotime.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.watch != w {
		return // the controller has changed the pod's state meanwhile
	}
	d.endWatch(p)
	if p.probe != "" {
		d.startProbes(s, p, at)
		return
	}
	d.serve(s, p)
	d.send(&wire.Listening{Service: s.addr, PodID: p.id, At: at})
}
