// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
)

// The intervals at which a runtime without events is polled. It is busy from the creation of a network namespace, or
// the announcement of a pod (Hurry), until nothing has happened for busyFor.
const (
	pollQuiet = time.Second
	pollBusy  = 25 * time.Millisecond
	busyFor   = 5 * time.Second
)

// poll lists the pods again and again, until the runtime does not answer. connected is whether it ever answered.
func (w *Watcher) poll(ctx context.Context) (connected bool, err error) {
	var created chan fsnotify.Event
	var failed chan error
	if n, err := fsnotify.NewWatcher(); err == nil {
		defer n.Close()
		if n.Add(w.cfg.netns) == nil {
			created, failed = n.Events, n.Errors
		}
	}
	var busyUntil time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return connected, ctx.Err()
		case <-w.hurry:
		case <-created:
		case <-failed: // too many events
		case <-timer.C:
			before := w.pods.reports
			if err := w.list(ctx); err != nil {
				return connected, err
			}
			if connected = true; w.pods.reports != before {
				busyUntil = time.Now().Add(busyFor)
			}
			if time.Now().Before(busyUntil) {
				timer.Reset(pollBusy)
			} else {
				timer.Reset(pollQuiet)
			}
			continue
		}
		if busyUntil = time.Now().Add(busyFor); timer.Stop() {
			timer.Reset(pollBusy)
		}
	}
}
