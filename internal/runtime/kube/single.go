// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"math"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
)

// A service whose Deployment has the strategy Recreate has a single pod. It is created here, with a name of its own
// that is always the same, and stays without a ReplicaSet: as with a StatefulSet, the API server refuses a second pod
// for as long as the object of the first exists, which is until kubelet has ended its processes. Nothing here deletes a
// pod with a grace of zero, which would remove the object without kubelet.

// singleRetry is the pause after which the creation of a single pod is tried again if nothing is observed meanwhile.
const singleRetry = time.Second

// isSingle reports whether the pods of a Deployment must not run at the same time.
func isSingle(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType
}

// singleName is the name of the single pod of a service.
func singleName(service string) string { return service + "-single" }

// singlePod returns the single pod of a Deployment. The Deployment is its controller, so that no ReplicaSet adopts it.
func singlePod(d *appsv1.Deployment) *corev1.Pod {
	t := d.Spec.Template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: singleName(d.Name),
			Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID, Controller: new(true)},
			},
		},
		Spec: t.Spec,
	}
}

// createSingle creates the single pod once no other is left, and recreates it if it disappears before it has a network.
// It returns the UID of the last one when ctx ends or the waiter has a pod.
func (r *Runtime) createSingle(ctx context.Context, s *service, w *waiter, hash string) (uid string) {
	for {
		r.deleteFailed(ctx, s)
		r.mu.Lock()
		assigned, d, waits, changed := w.pod != nil, s.deployment, r.singleWaits(s, hash), r.changed
		if uid != "" && r.gone.has(uid) {
			uid = ""
		}
		if w.pod == nil && waits != "" && uid == "" {
			w.hold(waits)
			r.reportTrouble(s, r.heldUpBy(s, waits))
		}
		r.mu.Unlock()
		if assigned || ctx.Err() != nil {
			return uid
		}
		if waits == "" && uid == "" {
			r.mu.Lock()
			pod := r.preferring(s.key, singlePod(d))
			r.mu.Unlock()
			made, err := r.api.createSingle(ctx, s.ident, pod)
			if err != nil {
				w.fail(err)
				return ""
			}
			uid = made
		}
		select {
		case <-changed:
		case <-time.After(singleRetry):
		case <-ctx.Done():
		}
	}
}

// deleteFailed deletes the pods of a service whose processes have ended for good: their objects block the next one.
func (r *Runtime) deleteFailed(ctx context.Context, s *service) {
	r.mu.Lock()
	failed := map[string]string{}
	for uid, p := range s.pods {
		if p.is(podFailed) && !p.is(podLeaving) {
			failed[uid] = p.name
			p.set(podStopping)
		}
	}
	r.mu.Unlock()
	for uid, name := range failed {
		if err := r.deletePod(ctx, s, name, uid, nil); err != nil {
			r.log.Warn(err.Error(), "service", string(s.key))
		}
	}
}

// heldUpBy returns the trouble of a service whose single pod waits. The lock is held.
func (r *Runtime) heldUpBy(s *service, waits string) trouble {
	for _, p := range s.pods {
		if reason, ok := r.lost(p); ok && s.reported.lost {
			return trouble{reason: reason, lost: true}
		}
	}
	return trouble{reason: waits}
}

// singleWaits returns why the creation of a single pod must wait; empty if it need not. The lock is held.
func (r *Runtime) singleWaits(s *service, hash string) string {
	for _, p := range s.pods {
		where := ""
		if p.node != "" {
			where = " on node " + p.node
		}
		return fmt.Sprintf("waits for pod %s%s to end: it may still run, and no other may run beside it", p.name, where)
	}
	o := s.observe(time.Now())
	switch d := o.deployment; {
	case d == nil:
		return fmt.Sprintf("Deployment %s is not known yet", s.name)
	case !isSingle(d) || d.Spec.Template.Labels[v1alpha1.LabelSpecHash] != hash:
		return fmt.Sprintf("Deployment %s does not have the present spec yet", s.name)
	case !atRest(d, o.sets) || s.machine.stage != idle:
		return fmt.Sprintf("Deployment %s is not paused yet: check kube-controller-manager", s.name)
	}
	return ""
}

// abandonSingle deletes the pod that a Start made. The lock is held.
func (r *Runtime) abandonSingle(s *service, w *waiter, uid string) {
	r.dropWaiter(s, w)
	if !s.reported.lost {
		r.reportTrouble(s, trouble{})
	}
	if p := w.pod; p != nil {
		uid = p.rt.ID
		p.waiter = nil
		p.set(podStopping)
	} else if p := r.byUID[uid]; p != nil {
		p.set(podStopping)
	}
	if uid == "" || r.retired {
		return
	}
	r.deleteLater(s, singleName(s.name), uid)
}

// deleteLater deletes a pod in the background, with the grace of its spec.
func (r *Runtime) deleteLater(s *service, name, uid string) {
	r.workers.Go(func() {
		if err := r.deletePod(r.ctx, s, name, uid, nil); err != nil {
			r.log.Warn(err.Error(), "service", string(s.key))
		}
	})
}

// stopSingle is Stop for a pod that must be gone before another one may start, and that no ReplicaSet owns any more.
// It returns only once kubelet has ended the pod, or the API server no longer has it; a node that is not ready may
// still run it.
func (r *Runtime) stopSingle(ctx context.Context, p *pod, grace time.Duration) error {
	s := p.service
	for {
		r.mu.Lock()
		o := s.observe(time.Now())
		managed, changed := p.owner == ownerReplicaSet && len(o.sets) > 0, r.changed
		p.set(podStopping)
		r.mu.Unlock()
		if !managed {
			break
		}
		select { // a ReplicaSet would replace the pod: see convertTask
		case <-changed:
		case <-p.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("service %s: pod %s is not gone yet: %w", s.key, p.name, ctx.Err())
		}
	}
	seconds := int64(math.Ceil(max(grace, time.Second).Seconds()))
	if err := r.deletePod(ctx, s, p.name, p.rt.ID, &seconds); err != nil {
		return err
	}
	for timeout := grace + lostPatience; ; timeout = time.Minute {
		select {
		case <-p.gone:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("service %s: pod %s is not gone yet: %w", s.key, p.name, ctx.Err())
		case <-time.After(timeout):
			r.log.Warn("the pod does not end, and may still run: no other one starts. If its node is certainly off, "+
				"delete the Node, or taint it node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
				"service", string(s.key), "pod", p.name, "node", p.node)
		}
	}
}

// createSingle creates a pod with a fixed name, unless the API server has any pod of the service. It returns the UID
// of the pod, or none if another pod blocks it.
func (q *requests) createSingle(ctx context.Context, id ident, pod *corev1.Pod) (uid string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list, err := q.client.CoreV1().Pods(id.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: v1alpha1.LabelService + "=" + id.name,
	})
	if err != nil {
		return "", apiError(id.key, "list its pods", err)
	}
	if len(list.Items) > 0 {
		return "", nil
	}
	uid, err = q.createPod(ctx, id, pod)
	if apierrors.IsAlreadyExists(err) {
		return "", nil
	}
	return uid, err
}
