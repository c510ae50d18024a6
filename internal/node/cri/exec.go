// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/node/readiness"
)

// Exec runs a command in a container of the pod with a UID, with the container's own rights (ExecSync), and returns its
// exit code and the first readiness.MaxOutput bytes of its output. The runtime kills the command when ctx ends. It is
// safe for concurrent use.
func (w *Watcher) Exec(ctx context.Context, uid, container string, command []string) (int, []byte, error) {
	sandbox := w.pods.sandboxOf(uid)
	if sandbox == "" {
		return 0, nil, fmt.Errorf("the container runtime has no pod with the UID %s", uid)
	}
	r, err := w.client.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		PodSandboxId: sandbox, State: &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return 0, nil, fmt.Errorf("containers of pod %s: %w", uid, err)
	}
	id := ""
	for _, c := range r.Containers {
		if c.GetMetadata().GetName() == container {
			id = c.Id
		}
	}
	if id == "" {
		return 0, nil, fmt.Errorf("container %q does not run", container)
	}
	seconds := int64(callTimeout / time.Second)
	if deadline, ok := ctx.Deadline(); ok {
		seconds = int64(math.Ceil(time.Until(deadline).Seconds()))
	}
	out, err := w.client.ExecSync(ctx, &criv1.ExecSyncRequest{
		ContainerId: id, Cmd: command, Timeout: max(seconds, 1),
	})
	if err != nil {
		return 0, nil, err
	}
	output := slices.Concat(out.Stdout, out.Stderr)
	return int(out.ExitCode), output[:min(len(output), readiness.MaxOutput)], nil
}

// sandboxOf returns the runtime's ID of the sandbox of the pod with a UID; empty if there is none.
func (p *pods) sandboxOf(uid string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, b := range p.known {
		if b.pod.ID == uid {
			return id
		}
	}
	return ""
}
