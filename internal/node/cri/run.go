// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Run watches until ctx ends. While the runtime does not answer, nothing is reported; afterwards, what has changed.
func (w *Watcher) Run(ctx context.Context) {
	defer w.conn.Close()
	follow, lost := w.follow, false
	for {
		connected, err := follow(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case status.Code(err) == codes.Unimplemented:
			w.cfg.Log.Warn("this container runtime has no events: polling it once a second, and often while pods change; "+
				"containerd 1.7 or CRI-O with enable_pod_events is quicker", "endpoint", w.cfg.Endpoint)
			follow = w.poll
			continue
		case connected || !lost:
			w.cfg.Log.Warn("the container runtime does not answer: new pods are not served until it does",
				"endpoint", w.cfg.Endpoint, "error", err)
		}
		lost = true
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}
