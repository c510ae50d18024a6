// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/decide/lifecycle"
)

// PodEvents is what the runtimes have reported about one pod.
type PodEvents struct {
	// Phases are the wall-clock times at which phases ended.
	Phases map[lifecycle.PhaseName]time.Time
	// Addr is the pod's address, which exists with its sandbox.
	Addr netip.Addr
}

// add records an event.
func (e *PodEvents) add(event *criv1.ContainerEventResponse) {
	if e.Phases == nil {
		e.Phases = map[lifecycle.PhaseName]time.Time{}
	}
	sandbox := event.PodSandboxStatus
	// The runtime's own time of the sandbox, as in Wangell's waterfall.
	e.Phases[lifecycle.PhaseSandbox] = time.Unix(0, sandbox.CreatedAt)
	if event.ContainerId != sandbox.Id {
		at := time.Unix(0, event.CreatedAt)
		switch event.ContainerEventType {
		case criv1.ContainerEventType_CONTAINER_CREATED_EVENT:
			e.Phases[lifecycle.PhaseCreated] = at
		case criv1.ContainerEventType_CONTAINER_STARTED_EVENT:
			e.Phases[lifecycle.PhaseStarted] = at
		}
	}
	if addr, err := netip.ParseAddr(sandbox.GetNetwork().GetIp()); err == nil {
		e.Addr = addr
	}
}

// Until records events until a phase has ended and the pod has an address.
func (e *PodEvents) Until(
	ctx context.Context, phase lifecycle.PhaseName, events <-chan *criv1.ContainerEventResponse,
) error {
	for e.Phases[phase].IsZero() || !e.Addr.IsValid() {
		select {
		case event := <-events:
			e.add(event)
		case <-ctx.Done():
			return fmt.Errorf("the node's runtime did not report the end of phase %q: %w", phase, ctx.Err())
		}
	}
	return nil
}
