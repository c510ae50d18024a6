// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"maps"
	"slices"
	"time"

	"wangell.loutres.me/internal/wire"
)

// usageInterval is the interval at which the usage of pods is reported.
const usageInterval = 2 * time.Second

// sendUsage reports the usage of the pods of services with wire.FlagUsage. It does not wait for the container
// runtime; a slow one is queried less often.
func (d *daemon) sendUsage(ctx context.Context) {
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
	d.tasks.Go(func() {
		defer func() { <-d.usage.busy }()
		err := d.readUsage(ctx, pods)
		if err != nil && ctx.Err() == nil && !d.usage.failed {
			d.log.Warn("cannot read the usage of pods: services do not scale by it", "error", err)
		}
		d.usage.failed = err != nil
	})
}

// meteredPods returns the serving local pods whose usage the controller wants, by network namespace.
func (d *daemon) meteredPods() map[string][]wire.PodUsage {
	out := map[string][]wire.PodUsage{}
	for _, s := range d.allServices() {
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

// readUsage reads the usage of pods from the container runtime and reports it.
func (d *daemon) readUsage(ctx context.Context, pods map[string][]wire.PodUsage) error {
	used, err := d.cri.Usage(ctx, slices.Collect(maps.Keys(pods)))
	if err != nil {
		return err
	}
	var usage []wire.PodUsage
	for path, u := range used {
		for _, p := range pods[path] {
			p.CPU, p.Memory, p.At = uint64(u.CPU), u.Memory, u.At
			usage = append(usage, p)
		}
	}
	for batch := range slices.Chunk(usage, wire.MaxPodUsage) {
		d.send(&wire.Usage{Pods: batch})
	}
	return nil
}
