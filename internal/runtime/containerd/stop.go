// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Stop stops a pod and removes it; see runtime.Runtime. spec.stopSignal, or else the image's STOPSIGNAL, replaces
// SIGTERM. A process that the signal would end if it were not PID 1 is killed at once; see endsByDefault. While
// containerd is away, Stop waits for it until ctx ends.
func (r *Runtime) Stop(ctx context.Context, id string, grace time.Duration) error {
	r.mu.Lock()
	p := r.pods[id]
	r.mu.Unlock()
	if p == nil {
		return nil
	}
	p.stop.Lock()
	defer p.stop.Unlock()
	defer r.keeper.stopped()
	period := &gracePeriod{length: grace}
	if err := retry(ctx, func() error { return r.end(ctx, id, period) }); err != nil {
		return fmt.Errorf("stop pod %s: %w", id, err)
	}
	return nil
}

// kill kills a pod and removes whatever is left of it.
func (r *Runtime) kill(ctx context.Context, id string) error { return r.end(ctx, id, &gracePeriod{}) }

// end asks the pod's processes to exit if there is a grace period, kills them after that, and removes the pod. Any part
// of the pod may be missing.
func (r *Runtime) end(ctx context.Context, id string, grace *gracePeriod) error {
	if err := r.endTasks(ctx, id, grace); err != nil {
		return err
	}
	r.mu.Lock()
	network := ""
	if p := r.pods[id]; p != nil {
		network = p.net.Name
	}
	r.mu.Unlock()
	if err := r.removePod(ctx, id, network); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.pods, id)
	r.mu.Unlock()
	return nil
}

// endTasks ends the processes of a pod: its sidecars after its other containers, as Kubernetes does.
func (r *Runtime) endTasks(ctx context.Context, pod string, grace *gracePeriod) error {
	members := r.membersOf(pod)
	if len(members) == 0 {
		return r.endTask(ctx, pod, pod, grace)
	}
	for _, m := range members {
		m.finish()
	}
	for _, sidecars := range []bool{false, true} {
		var ends sync.WaitGroup
		errs := make([]error, len(members)+1)
		if !sidecars {
			ends.Go(func() { errs[len(members)] = r.endTask(ctx, pod, pod, grace) })
		}
		for i, m := range members {
			if (m.kind == kindSidecar) == sidecars {
				ends.Go(func() { errs[i] = r.endTask(ctx, pod, m.id, grace) })
			}
		}
		ends.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}
