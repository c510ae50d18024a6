// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// Usage asks the runtime what the pods with these network namespaces use, and returns that by namespace; a pod of which it
// knows nothing yet is not in it. Other than Run, it may be called by several goroutines at once. It is one question for
// each pod: the filter of the CRI knows one.
func (w *Watcher) Usage(ctx context.Context, netns []string) (map[string]runtime.Usage, error) {
	ids := w.pods.sandboxes(netns)
	out := make(map[string]runtime.Usage, len(ids))
	for path, id := range ids {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		r, err := w.client.ListContainerStats(call, &criv1.ListContainerStatsRequest{Filter: &criv1.ContainerStatsFilter{PodSandboxId: id}})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("asking what pod %s uses: %w", id, err)
		}
		if u, ok := sumOf(r.Stats); ok {
			out[path] = u
		}
	}
	return out, nil
}

// sumOf adds up what containers use. There is no sum without a figure of each.
func sumOf(stats []*criv1.ContainerStats) (u runtime.Usage, ok bool) {
	var at int64
	for _, s := range stats {
		cpu, memory := s.GetCpu().GetUsageCoreNanoSeconds(), s.GetMemory().GetWorkingSetBytes()
		if cpu == nil || memory == nil {
			return u, false
		}
		u.CPU += time.Duration(cpu.Value)
		u.Memory += memory.Value
		at = max(at, s.Cpu.Timestamp)
	}
	u.At = monotimeOf(at)
	return u, len(stats) > 0
}

// monotimeOf is a Unix time in nanoseconds as a monotonic one; now if it is not known, or still to come.
func monotimeOf(at int64) monotime.Time {
	now := monotime.Now()
	if since := time.Since(time.Unix(0, at)); at > 0 && since > 0 {
		return max(now.Add(-since), 1)
	}
	return now
}
