// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/internal/runtime"
)

// costPatch makes a pod the one that its ReplicaSet takes away first among those that are ready
// (https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost).
const costPatch = `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-2147483648"}}}`

const (
	// rolloutPatience is how long a pod that a rollout has too many may stay before it is deleted by name.
	rolloutPatience = time.Minute
	// lostPatience is how long after its grace a pod that does not end is looked after: its node may be gone.
	lostPatience = 10 * time.Second
)

// Stop implements runtime.Runtime: the Deployment wants one less, this pod is the one that goes, and it returns when it
// is gone. Seconds of grace are rounded up. A pod on a node that is not ready any more is taken for gone some seconds
// after its grace, and its object is deleted without waiting for the node.
func (r *Runtime) Stop(ctx context.Context, podID string, grace time.Duration) error {
	r.mu.Lock()
	p := r.byUID[podID]
	if p == nil {
		r.mu.Unlock()
		return nil
	}
	s := p.service
	first := !p.stopping
	reduced, rollout := false, false
	if first && !p.leaving && !p.failed {
		reduced = s.wantLess()
		rollout = !reduced && s.want > 0
	}
	if reduced {
		s.unmarked++ // until remove has marked it, whoever writes must not have its ReplicaSet choose
	}
	p.stopping = true
	inAPI := p.inAPI
	r.mu.Unlock()

	if rollout {
		if gone, err := r.goes(ctx, p, rolloutPatience); gone || err != nil {
			return err
		}
	}
	if first || !inAPI {
		if err := r.remove(ctx, s, p, grace, reduced); err != nil {
			r.mu.Lock()
			p.stopping = !first // the next call tries all of it again
			if reduced {
				s.want++
			}
			r.mu.Unlock()
			return err
		}
	}
	for wait := grace + lostPatience; ; wait = lostPatience {
		select {
		case <-p.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("service %s: pod %s is not gone yet: %w", s.key, p.name, ctx.Err())
		case <-time.After(wait):
			if err := r.removeLost(ctx, s, p); err != nil {
				return err
			}
		}
	}
}

// goes waits until a pod is gone, or is being taken away by somebody else, or the time is over.
func (r *Runtime) goes(ctx context.Context, p *pod, patience time.Duration) (gone bool, err error) {
	timeout := time.After(patience)
	for {
		r.mu.Lock()
		leaving, changed := p.leaving, r.changed
		r.mu.Unlock()
		if leaving {
			return false, nil
		}
		select {
		case <-p.gone:
			return true, nil
		case <-changed:
		case <-timeout:
			return false, nil
		case <-ctx.Done():
			return false, fmt.Errorf("service %s: pod %s is not gone yet: %w", p.service.key, p.name, ctx.Err())
		}
	}
}

// remove writes the number of replicas and sees to it that this very pod goes. unmarked: the service counts it as such.
func (r *Runtime) remove(ctx context.Context, s *service, p *pod, grace time.Duration, unmarked bool) error {
	r.mu.Lock()
	all := s.want == 0
	exists := s.uid != ""
	owned := !p.alone || s.direct != nil && s.direct.uids[p.rt.ID]
	leaving, same := p.leaving, !p.failed && owned && p.grace == grace
	r.mu.Unlock()
	pods := r.cfg.Client.CoreV1().Pods(s.namespace)
	var err error
	if !all && !leaving && exists {
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		_, err = pods.Patch(request, p.name, types.MergePatchType, []byte(costPatch), metav1.PatchOptions{})
		cancel()
	}
	if unmarked {
		r.mu.Lock()
		s.unmarked--
		r.mu.Unlock()
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return r.apiError(s.key, "mark pod "+p.name, err)
	}
	if exists {
		if err := r.write(ctx, s); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if exists && same && (all || leaving) {
		return nil // its ReplicaSet ends all of them, and with this grace
	}
	return r.delete(ctx, s, p, int64(math.Ceil(max(grace, time.Second).Seconds())))
}

// delete deletes a pod's object. Zero seconds of grace do not wait for its node.
func (r *Runtime) delete(ctx context.Context, s *service, p *pod, seconds int64) error {
	return r.deletePod(ctx, s, p.name, p.rt.ID, &seconds)
}

// deletePod deletes a pod's object with seconds of grace; nil for those of its spec.
func (r *Runtime) deletePod(ctx context.Context, s *service, name, uid string, seconds *int64) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	id := types.UID(uid)
	err := r.cfg.Client.CoreV1().Pods(s.namespace).Delete(ctx, name, metav1.DeleteOptions{
		GracePeriodSeconds: seconds, Preconditions: &metav1.Preconditions{UID: &id},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return r.apiError(s.key, "delete pod "+name, err)
	}
	if err != nil { // it is gone; the watch may have told before it was known here
		r.mu.Lock()
		if p := r.byUID[uid]; p != nil {
			r.drop(p)
		}
		r.mu.Unlock()
	}
	return nil
}

// removeLost deletes a pod that does not end because its node is gone or not ready.
func (r *Runtime) removeLost(ctx context.Context, s *service, p *pod) error {
	r.mu.Lock()
	name := p.rt.Node
	r.mu.Unlock()
	if name == "" {
		return nil
	}
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	node, err := r.cfg.Client.CoreV1().Nodes().Get(request, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return r.apiError(s.key, "look at node "+name+" of pod "+p.name, err)
	case nodeReady(node):
		return nil
	}
	r.log.Warn("the pod's node is gone: the pod is deleted without it", "service", string(s.key), "pod", p.name, "node", name)
	return r.delete(ctx, s, p, 0)
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

var _ runtime.Runtime = (*Runtime)(nil)
