// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netns"
	"wangell.loutres.me/internal/base/backoff"
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
	w.found = func(at []netip.AddrPort) { d.listensElsewhere(s, p, w, at) }
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
	p.listened = true
	if first := s.first().pods[p.id]; first != nil && first.probe != "" {
		if first.probes == nil {
			d.startProbes(s.first(), first, at)
			return
		}
		if first.unready() {
			return // ready serves it
		}
	}
	d.serve(s, p)
	d.send(&wire.Listening{Service: s.addr, PodID: p.id, At: at})
}

// listensElsewhere reports where a pod listens that clients do not reach, unless the controller has that already.
func (d *daemon) listensElsewhere(s *service, p *pod, w *listenWatch, at []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.watch != w || w.reported && slices.Equal(w.sockets, at) {
		return
	}
	w.reported, w.sockets = true, at
	d.send(&wire.Sockets{Service: s.addr, PodID: p.id, At: at})
}

// Pauses before a pod on another node gets new flows again, after the gate of its node has refused one because the pod
// did not listen. Usually the controller reports the pod's state within milliseconds; the pauses matter when there is
// no controller.
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
	p.serving, p.restarting, p.listened = false, true, false
	d.fronts.notify()
	if others, _ := s.open(p.id); !others {
		if first := s.first().pods[p.id]; first != nil {
			first.endProbes()
		}
	}
	d.log.Info("a pod does not listen any more: no new flows until it does", "service", s.name, "pod", p.id)
	d.send(&wire.Deaf{Service: s.addr, PodID: p.id, At: monotime.Now()})
	d.wakeForParked(s)
	if err := d.startWatch(s, p); err != nil {
		d.log.Warn("cannot watch for a pod to listen again", "service", s.name, "pod", p.id, "error", err)
	}
}

// serveAgain gives a pod new flows again after the gate had found it deaf. s.mu is held.
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

// wakeForParked asks for a pod if clients wait and no pod serves any more. When the gate asked for a pod for the first
// of them, the controller may still have counted on the last pod. s.mu is held.
func (d *daemon) wakeForParked(s *service) {
	if s.serving() == 0 && d.gate.ServiceCounters(s.addr).ParkedNow > 0 {
		d.tasks.Go(func() { d.wake(s.addr, d.gate.SYNSeen(s.addr)) })
	}
}

const (
	// probeInterval is the interval at which a pod is polled if the kernel has no event for LISTEN.
	probeInterval = 2 * time.Millisecond

	// After an event, the socket is looked for with growing pauses, about 20 ms long in all.
	firstLookupPause   = 10 * time.Microsecond
	longestLookupPause = 20 * time.Millisecond

	// socketsPause is how long a pod may take to listen before its other sockets are looked at, and the pause until they
	// are looked at again.
	socketsPause = 2 * time.Second
)

// listenWatch waits for a pod to listen. The kernel's event precedes, by microseconds, the moment from which an
// incoming SYN finds the socket. So an event only triggers a look; isListening decides.
type listenWatch struct {
	addr   netip.AddrPort
	cookie uint64 // of the pod's network namespace
	diag   *sockDiag
	probe  *prober
	events chan monotime.Time // times of LISTEN events
	cancel context.CancelFunc // ends wait; nil before that

	found    func([]netip.AddrPort) // called with where else the pod listens, while wait waits; may be nil
	sockets  []netip.AddrPort       // as reported, if reported is set; the service's mu guards both
	reported bool
}

// newListenWatch prepares to look whether the pod with an address listens. path is its network namespace.
func newListenWatch(path string, addr netip.AddrPort) (*listenWatch, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("opening its network namespace %s: %w", path, err)
	}
	defer ns.Close()
	w := &listenWatch{addr: addr, events: make(chan monotime.Time, 4)}
	if w.diag, err = newSockDiag(ns); err != nil {
		return nil, fmt.Errorf("opening a sock_diag socket in its network namespace %s: %w", path, err)
	}
	if err := inNetns(ns, func() (err error) { w.probe, err = newProber(addr); return err }); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *listenWatch) close() {
	if w.diag != nil {
		w.diag.close()
	}
	if w.probe != nil {
		w.probe.close()
	}
}

// wait returns when the pod listens, with the time of the kernel's event or of the look that found it; ok is false if
// ctx ended first. hasEvents reports whether the kernel sends events; if not, wait looks at intervals.
func (w *listenWatch) wait(ctx context.Context, hasEvents bool) (at monotime.Time, ok bool) {
	if w.isListening() { // it may have listened before the watch began
		return monotime.Now(), true
	}
	var tick <-chan time.Time
	if !hasEvents {
		t := time.NewTicker(probeInterval)
		defer t.Stop()
		tick = t.C
	}
	look := time.NewTicker(socketsPause)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, false
		case <-look.C:
			if w.found == nil {
				continue
			}
			if at, err := w.diag.listening(); err == nil {
				w.found(at)
			}
		case at := <-w.events:
			if w.confirm(ctx) {
				return at, true
			}
		case <-tick:
			if w.isListening() {
				return monotime.Now(), true
			}
		}
	}
}

// confirm reports whether the socket of a LISTEN event is found soon. It returns false if the program has closed the
// socket, or listens on another address.
func (w *listenWatch) confirm(ctx context.Context) bool {
	for pause := time.Duration(0); ctx.Err() == nil; {
		if w.isListening() {
			return true
		}
		if pause = backoff.Next(pause, firstLookupPause, longestLookupPause); pause == longestLookupPause {
			return false
		}
		time.Sleep(pause)
	}
	return false
}

// isListening reports whether a SYN to the pod's address would find a listening socket now. It asks the kernel; where
// the kernel has no sock_diag, it sends a SYN.
func (w *listenWatch) isListening() bool {
	yes, err := w.diag.hasListener(w.addr)
	if err != nil {
		return w.probe.answers()
	}
	return yes
}
