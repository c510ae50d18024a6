// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netns"

	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// probeInterval is how often a pod is probed where the kernel's word is not to be had.
const probeInterval = 2 * time.Millisecond

// watch waits for a pod to listen. The kernel's event comes as the socket enters LISTEN, which is just before
// it is found by an incoming SYN; so the event is only the sign to look (confirm), and the look decides.
type watch struct {
	addr   netip.AddrPort
	cookie uint64
	diag   *sockDiag
	probe  *prober
	signal chan monotime.Time // LISTEN events
	cancel context.CancelFunc
}

// newWatch opens what is needed to look whether a pod listens.
func newWatch(path string, addr netip.AddrPort) (*watch, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("opening its network namespace %s: %w", path, err)
	}
	defer ns.Close()
	w := &watch{addr: addr, signal: make(chan monotime.Time, 4)}
	if w.diag, err = newSockDiag(ns); err != nil {
		return nil, fmt.Errorf("asking its network namespace: %w", err)
	}
	if err := inNetns(ns, func() (err error) { w.probe, err = newProber(addr); return err }); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// startWatch begins to wait. s.mu is held.
func (d *daemon) startWatch(s *service, p *pod) error {
	w, err := newWatch(p.netns, p.addr)
	if err != nil {
		return fmt.Errorf("%s: %w", named(s.addr, p.id), err)
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
	d.watchers.Add(1)
	go func() {
		defer d.watchers.Done()
		defer w.close()
		if at, ok := w.wait(ctx, d.gate.FollowsListen()); ok {
			d.listens(s, p, w, at)
		}
	}()
	return nil
}

// endWatch ends the wait for a pod, if there is one. s.mu is held.
func (d *daemon) endWatch(p *pod) {
	if p.watch == nil {
		return
	}
	p.watch.cancel()
	if err := d.gate.UnwatchListen(p.watch.cookie, p.watch.addr.Port()); err != nil {
		d.log.Warn("a watch cannot be ended", "error", err)
	}
	p.watch = nil
}

func (w *watch) close() {
	if w.diag != nil {
		w.diag.close()
	}
	if w.probe != nil {
		w.probe.close()
	}
}

// listen passes a LISTEN event to whoever waits for it.
func (d *daemon) listen(e gate.Event) {
	s := d.service(e.Service)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pods[e.Pod]; p != nil && p.watch != nil {
		select {
		case p.watch.signal <- e.At:
		default: // enough are waiting
		}
	}
}

// wait returns when the pod listens, with the time of the kernel's event or of the probe; false if ctx ended.
func (w *watch) wait(ctx context.Context, events bool) (monotime.Time, bool) {
	// It may have listened before the watch began.
	if w.listening() {
		return monotime.Now(), true
	}
	var tick <-chan time.Time
	if !events {
		t := time.NewTicker(probeInterval)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return 0, false
		case at := <-w.signal:
			// The socket is findable within microseconds of the event; a program that closes it again, or that
			// listens on another address, is not waited for.
			for pause := 10 * time.Microsecond; pause < 20*time.Millisecond && ctx.Err() == nil; pause *= 2 {
				if w.listening() {
					return at, true
				}
				time.Sleep(pause)
			}
		case <-tick:
			if w.listening() {
				return monotime.Now(), true
			}
		}
	}
}

// listening tells whether a SYN to the pod's address would find a listening socket now: it asks the kernel, and where that
// has no sock_diag, probes with a SYN.
func (w *watch) listening() bool {
	yes, err := w.diag.listens(w.addr)
	if err != nil {
		return w.probe.answers()
	}
	return yes
}

// listens makes a pod that listens serve, and tells the controller.
func (d *daemon) listens(s *service, p *pod, w *watch, at monotime.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.watch != w {
		return // the controller decided otherwise meanwhile
	}
	d.endWatch(p)
	d.serve(s, p)
	d.send(&wire.Listening{Service: s.addr, PodID: p.id, At: at})
}
