// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
)

// How often a runtime without events is asked: seldom while all is quiet, often from when a network namespace is made or a
// pod is expected (Hurry) until nothing has happened for a while.
const (
	pollQuiet = time.Second
	pollBusy  = 25 * time.Millisecond
	busyFor   = 5 * time.Second
)

// netnsFolder is where runtimes make the network namespaces of pods.
const netnsFolder = "/run/netns"

// poll lists the pods again and again. It is connected if the runtime answered.
func (w *Watcher) poll(ctx context.Context) (connected bool, err error) {
	var made chan fsnotify.Event
	var failed chan error
	if n, err := fsnotify.NewWatcher(); err == nil {
		defer n.Close()
		if n.Add(netnsFolder) == nil {
			made, failed = n.Events, n.Errors
		}
	}
	var busy time.Time // until then
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return connected, ctx.Err()
		case <-w.hurry:
		case <-made:
		case <-failed: // too much at once: look
		case <-timer.C:
			before := w.pods.tellings
			if err := w.list(ctx); err != nil {
				return connected, err
			}
			if connected = true; w.pods.tellings != before {
				busy = time.Now().Add(busyFor)
			}
			if time.Now().Before(busy) {
				timer.Reset(pollBusy)
			} else {
				timer.Reset(pollQuiet)
			}
			continue
		}
		if busy = time.Now().Add(busyFor); timer.Stop() {
			timer.Reset(pollBusy)
		}
	}
}
