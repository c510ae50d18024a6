// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netns"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
)

const (
	// probeInterval is the interval at which a pod is polled if the kernel has no event for LISTEN.
	probeInterval = 2 * time.Millisecond

	// After an event, the socket is looked for with growing pauses, about 20 ms long in all.
	firstLookupPause   = 10 * time.Microsecond
	longestLookupPause = 20 * time.Millisecond
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
	for {
		select {
		case <-ctx.Done():
			return 0, false
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

// confirm reports whether the socket of a LISTEN event is found soon. It is not if the program closed it again, or
// listens on another address.
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
