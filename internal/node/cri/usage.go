// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/runtime"
)

// Usage returns the usage of the pods with these network namespaces, by namespace, without pods for which the runtime
// has no figures yet. It makes one call for each pod, as the CRI's filter takes one. It is safe for concurrent use.
func (w *Watcher) Usage(ctx context.Context, netns []string) (map[string]runtime.Usage, error) {
	ids := w.pods.sandboxes(netns)
	out := make(map[string]runtime.Usage, len(ids))
	for path, id := range ids {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		filter := &criv1.ContainerStatsFilter{PodSandboxId: id}
		r, err := w.client.ListContainerStats(call, &criv1.ListContainerStatsRequest{Filter: filter})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("stats of pod %s: %w", id, err)
		}
		if u, ok := sumOf(r.Stats); ok {
			out[path] = u
		}
	}
	return out, nil
}

// sumOf adds up the usage of containers. ok is false if the figures of one are missing.
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
