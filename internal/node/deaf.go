// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// Pauses before a pod on another node gets new flows again after its node's gate has refused one because the pod did
// not listen. Usually the controller reports the pod's state within milliseconds; the pauses matter when there is no
// controller.
const (
	firstRetryPause   = 100 * time.Millisecond
	longestRetryPause = time.Second
)

// deafEvent handles the gate's report that a serving pod may have stopped listening.
func (d *daemon) deafEvent(e gate.Event) {
	s := d.service(e.Service)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if gate.IsFront(e.Pod) {
		d.frontIsDeaf(s, e.Pod)
		return
	}
	p := s.pods[e.Pod]
	switch {
	case p == nil || !p.serving:
	case p.home:
		d.awaitListening(s, p)
	default:
		d.retryLater(s, p)
	}
}

// awaitListening stops new flows to a pod until it listens again: its process has ended, and may be restarted in place,
// or has closed its socket. It does nothing if another socket of the pod listens. s.mu is held.
func (d *daemon) awaitListening(s *service, p *pod) {
	if w, err := newListenWatch(p.netns, p.addr); err == nil {
		still := w.isListening()
		w.close()
		if still {
			d.serveAgain(s, p)
			return
		}
	}
	if err := d.gate.Drain(s.addr, p.id); err != nil {
		d.log.Error("cannot stop new flows to a pod that does not listen", "service", s.name, "pod", p.id, "error", err)
		return
	}
	p.serving, p.restarting = false, true
	d.fronts.notify()
	p.endProbes()
	d.log.Info("a pod does not listen any more: no new flows until it does", "service", s.name, "pod", p.id)
	d.send(&wire.Deaf{Service: s.addr, PodID: p.id, At: monotime.Now()})
	d.wakeForParked(s)
	if err := d.startWatch(s, p); err != nil {
		d.log.Warn("cannot watch for a pod to listen again", "service", s.name, "pod", p.id, "error", err)
	}
}

// serveAgain gives new flows to a pod again that the gate had found deaf. s.mu is held.
func (d *daemon) serveAgain(s *service, p *pod) {
	if state, _ := d.gate.PodState(s.addr, p.id); state != gate.PodDeaf {
		return
	}
	if _, err := d.gate.Serve(s.addr, p.id); err != nil {
		d.log.Error("cannot give a pod new flows again", "service", s.name, "pod", p.id, "error", err)
	}
}

// retryLater gives a pod new flows again after a pause. s.mu is held.
func (d *daemon) retryLater(s *service, p *pod) {
	if p.retrying {
		return
	}
	p.retrying, p.pause = true, backoff.Next(p.pause, firstRetryPause, longestRetryPause)
	pause := p.pause
	d.tasks.Go(func() {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(pause):
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		p.retrying = false
		if s.pods[p.id] == p && p.serving {
			d.serveAgain(s, p)
		}
	})
}

// wakeForParked asks for a pod if clients wait for one and none serves any more. When the gate asked for the first
// of them, the controller may still have counted on the last pod. s.mu is held.
func (d *daemon) wakeForParked(s *service) {
	if s.serving() == 0 && d.gate.ServiceCounters(s.addr).ParkedNow > 0 {
		d.tasks.Go(func() { d.wake(s.addr, d.gate.SYNSeen(s.addr)) })
	}
}
