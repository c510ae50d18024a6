// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"wangell.loutres.me/internal/wire"
)

// usageInterval is how often the controller is told what pods use that are scaled by it.
const (
	usageInterval = 2 * time.Second
	usagePerBatch = 20 // wire.Usage
)

// usage is the measuring of what pods use.
type usage struct {
	at     time.Time     // when it was begun last
	busy   chan struct{} // holds one while the container runtime is asked
	failed bool          // the last time; of whoever holds busy
}

// measure tells what pods use of services that are scaled by that. Nothing is asked for others. It does not wait for the
// container runtime; one that is slow is asked more seldom.
func (d *daemon) measure(ctx context.Context) {
	if d.cri == nil || time.Since(d.usage.at) < usageInterval {
		return
	}
	d.usage.at = time.Now()
	pods := d.meteredPods()
	if len(pods) == 0 {
		return
	}
	select {
	case d.usage.busy <- struct{}{}:
	default:
		return
	}
	d.watchers.Go(func() {
		defer func() { <-d.usage.busy }()
		err := d.tellUsage(ctx, pods)
		if err != nil && ctx.Err() == nil && !d.usage.failed {
			d.log.Warn("it is not known what pods use, so services do not scale by that", "error", err)
		}
		d.usage.failed = err != nil
	})
}

// meteredPods are the serving pods here of services that are scaled by what these use, by network namespace.
func (d *daemon) meteredPods() map[string][]wire.PodUsage {
	out := map[string][]wire.PodUsage{}
	for _, s := range d.all() {
		s.mu.Lock()
		for _, p := range s.pods {
			if s.usage && p.home && p.serving {
				out[p.netns] = append(out[p.netns], wire.PodUsage{Service: s.addr, PodID: p.id})
			}
		}
		s.mu.Unlock()
	}
	return out
}

func (d *daemon) tellUsage(ctx context.Context, pods map[string][]wire.PodUsage) error {
	paths := make([]string, 0, len(pods))
	for path := range pods {
		paths = append(paths, path)
	}
	used, err := d.cri.Usage(ctx, paths)
	if err != nil {
		return err
	}
	var batch []wire.PodUsage
	for path, u := range used {
		for _, p := range pods[path] {
			p.CPU, p.Memory, p.At = uint64(u.CPU), u.Memory, u.At
			if batch = append(batch, p); len(batch) == usagePerBatch {
				d.send(&wire.Usage{Pods: batch})
				batch = nil
			}
		}
	}
	if len(batch) > 0 {
		d.send(&wire.Usage{Pods: batch})
	}
	return nil
}
