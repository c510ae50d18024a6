// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// rolloutPatience is how long a surplus pod of a rollout may stay before it is deleted by name.
	rolloutPatience = time.Minute
	// lostPatience is the time after its grace at which the node of a pod that does not end is checked.
	lostPatience = 10 * time.Second
)

// stopReplica is Stop for a pod of a Deployment, which is scaled down by one with this pod as its victim. If its node
// is no longer ready, the pod counts as gone some seconds after its grace, and its object is deleted without waiting
// for the node.
func (r *Runtime) stopReplica(ctx context.Context, p *pod, grace time.Duration) error {
	s := p.service
	r.mu.Lock()
	first := !p.is(podStopping)
	reduced, rollout := false, false
	if first && !p.is(podLeaving|podFailed) {
		reduced = s.wantLess()
		rollout = !reduced && s.machine.want > 0
	}
	if reduced {
		s.machine.excess++ // until remove has marked the pod, no write may have its ReplicaSet choose another
	}
	p.set(podStopping)
	r.mu.Unlock()

	if rollout {
		if gone, err := r.waitLeaving(ctx, p, rolloutPatience); gone || err != nil {
			return err
		}
	}
	if first {
		if err := r.remove(ctx, p, grace, reduced); err != nil {
			r.mu.Lock()
			p.unset(podStopping) // the next call repeats everything
			if reduced {
				s.machine.want++
			}
			r.mu.Unlock()
			return err
		}
	}
	for timeout := grace + lostPatience; ; timeout = lostPatience {
		select {
		case <-p.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("service %s: pod %s is not gone yet: %w", s.key, p.name, ctx.Err())
		case <-time.After(timeout):
			if err := r.removeLost(ctx, p); err != nil {
				return err
			}
		}
	}
}

// waitLeaving waits until a pod is gone, is being deleted by others, or the timeout has passed.
func (r *Runtime) waitLeaving(ctx context.Context, p *pod, timeout time.Duration) (gone bool, err error) {
	expired := time.After(timeout)
	for {
		r.mu.Lock()
		leaving, changed := p.is(podLeaving), r.changed
		r.mu.Unlock()
		if leaving {
			return false, nil
		}
		select {
		case <-p.gone:
			return true, nil
		case <-changed:
		case <-expired:
			return false, nil
		case <-ctx.Done():
			return false, fmt.Errorf("service %s: pod %s is not gone yet: %w", p.service.key, p.name, ctx.Err())
		}
	}
}

// remove writes the number of replicas and makes this very pod the victim. excess: one replica was kept in the write
// for it.
func (r *Runtime) remove(ctx context.Context, p *pod, grace time.Duration, excess bool) error {
	s := p.service
	r.mu.Lock()
	m := &s.machine
	all, exists, leaving := m.want == 0, m.uid != "", p.is(podLeaving)
	owned := p.owner != ownerNone || m.direct != nil && m.direct.uids[p.rt.ID]
	sameGrace := !p.is(podFailed) && owned && p.grace == grace
	r.mu.Unlock()
	var err error
	if !all && !leaving && exists {
		err = r.api.markVictim(ctx, s.ident, p.name)
	}
	if excess {
		r.mu.Lock()
		m.excess--
		r.mu.Unlock()
	}
	if err != nil {
		return err
	}
	if exists {
		if err := r.drive(ctx, s, unwritten); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if exists && sameGrace && (all || leaving) {
		return nil // its ReplicaSet ends all of them, and with this grace
	}
	seconds := int64(math.Ceil(max(grace, time.Second).Seconds()))
	return r.deletePod(ctx, s, p.name, p.rt.ID, &seconds)
}

// removeLost deletes a pod that does not end because its node is gone or not ready. A pod that has become single
// meanwhile stays: without its object, another one would start beside it.
func (r *Runtime) removeLost(ctx context.Context, p *pod) error {
	s := p.service
	r.mu.Lock()
	node, single := p.rt.Node, p.owner == ownerDeployment || s.machine.single
	r.mu.Unlock()
	if node == "" || single {
		return nil
	}
	if ready, err := r.api.nodeReady(ctx, s.ident, node, p.name); ready || err != nil {
		return err
	}
	r.log.Warn("the pod's node is gone: deleting the pod without it",
		"service", string(s.key), "pod", p.name, "node", node)
	return r.deletePod(ctx, s, p.name, p.rt.ID, new(int64(0)))
}
