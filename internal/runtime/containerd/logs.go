// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"io"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// The log of a container of a service is one file, which the shims append to. Every logLook, a file above logLimit is
// rotated.
const (
	logLimit = 10 << 20 // bytes
	logLook  = 10 * time.Second
)

// Logs copies the log of one of the service's containers to w; see runtime.Runtime. With Follow, the end of ctx is not
// an error. The log of a container that never ran is empty.
func (r *Runtime) Logs(ctx context.Context, k v1alpha1.Key, w io.Writer, options runtime.LogOptions) error {
	name := r.cfg.containerLog(k, options.Container)
	if err := copyLog(ctx, name, w, options.Tail, options.Follow); err != nil {
		return fmt.Errorf("log of service %s: %w", k, err)
	}
	return nil
}

// rotateLogs rotates the logs of the running services, until Close.
func (r *Runtime) rotateLogs() {
	tick := time.NewTicker(logLook)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		names := map[string]bool{}
		r.mu.Lock()
		for _, p := range r.pods {
			names[r.cfg.logFile(p.Service)] = true
			for _, m := range r.members[p.ID] {
				names[r.cfg.containerLog(m.service, m.name)] = true
			}
		}
		r.mu.Unlock()
		for name := range names {
			if err := rotate(name, logLimit); err != nil {
				r.cfg.Log.Warn("cannot rotate a log", "file", name, "error", err)
			}
		}
	}
}
