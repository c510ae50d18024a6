// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// observeTimeout bounds the wait for the Deployment controller to have seen a change.
const observeTimeout = 10 * time.Second

// adopter is the ReplicaSet for direct pods. The Deployment takes it for its own if its template is that of the pods.
func adopter(d *appsv1.Deployment, t *corev1.PodTemplateSpec, hash string, replicas int32) *appsv1.ReplicaSet {
	yes := true
	t = t.DeepCopy()
	t.Labels = with(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = with(selector.MatchLabels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: d.Name + "-" + hash, Labels: maps.Clone(t.Labels),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name, UID: d.UID, Controller: &yes}},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: *t},
	}
}

// with is a map with one more key.
func with(m map[string]string, key, value string) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	out[key] = value
	return out
}

// handOver gives the direct pods to a ReplicaSet of the Deployment, which then wants so many. It is called by write in
// its turn, and can be called again after an error.
func (r *Runtime) handOver(ctx context.Context, s *service, dir *direct, want int32) error {
	begin := time.Now()
	r.mu.Lock()
	dir.handing = true
	r.mu.Unlock()
	version, err := r.send(ctx, s, want)
	if err != nil {
		return err
	}
	// A Deployment that is not known to want pods would have the ReplicaSet scaled to none.
	d, _, err := r.observed(ctx, s, fmt.Sprintf("wants %d pods", want), func(d *appsv1.Deployment) bool {
		return parseVersion(d.ResourceVersion) >= version
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	template, pods := r.templateOf(d, dir), int32(len(dir.uids))
	r.mu.Unlock()
	set := adopter(d, template, dir.hash, pods)
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	_, err = r.cfg.Client.AppsV1().ReplicaSets(s.namespace).Create(request, set, metav1.CreateOptions{})
	cancel()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return r.apiError(s.key, "create ReplicaSet "+set.Name, err)
	}
	// A Deployment that does not know the ReplicaSet makes another one once it is paused no more. One of an older
	// template is none that it would look for.
	r.known(ctx, func() bool {
		o, ok, _ := r.sets.GetStore().GetByKey(s.namespace + "/" + set.Name)
		return ok && o.(*appsv1.ReplicaSet).Annotations[revisionAnnotation] != ""
	})
	if err := r.goOn(ctx, s); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.direct == dir {
		s.direct, s.written, s.version = nil, want, max(s.version, version)
	}
	r.log.Debug("pods handed over", "service", string(s.key), "pods", pods, "replicas", want, "took", time.Since(begin))
	return nil
}

// templateOf is the template of direct pods. Of those that another controller made, the labels tell whether the Deployment's
// is another by now, which then replaces the pods. The lock is held.
func (r *Runtime) templateOf(d *appsv1.Deployment, dir *direct) *corev1.PodTemplateSpec {
	if dir.from != nil {
		return &dir.from.Spec.Template
	}
	t := d.Spec.Template.DeepCopy()
	for uid := range dir.uids {
		if p := r.byUID[uid]; p != nil && p.rt.SpecHash != "" {
			t.Labels = with(t.Labels, v1alpha1.LabelSpecHash, p.rt.SpecHash)
			break
		}
	}
	return t
}

// pause pauses a Deployment, or lets it go on. With a version, it does so only to that version of it.
func (r *Runtime) pause(ctx context.Context, s *service, pause bool, version string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	patch := fmt.Sprintf(`{"spec":{"paused":%t}}`, pause)
	if version != "" {
		patch = fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"paused":%t}}`, version, pause)
	}
	_, err := r.cfg.Client.AppsV1().Deployments(s.namespace).Patch(ctx, s.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return r.apiError(s.key, fmt.Sprintf("set spec.paused of Deployment %s to %t", s.name, pause), err)
	}
	return nil
}

// observed waits until something holds of a service's Deployment and its controller has seen that. It returns the Deployment and
// its ReplicaSets as they are then. what says what is to be seen of it.
func (r *Runtime) observed(ctx context.Context, s *service, what string, holds func(*appsv1.Deployment) bool) (d *appsv1.Deployment, sets []*appsv1.ReplicaSet, err error) {
	seen := r.known(ctx, func() bool {
		d, sets = r.lookUp(s)
		return d != nil && holds(d) && seenByController(d)
	})
	if !seen {
		return nil, nil, fmt.Errorf("service %s: %w: the Deployment controller has not seen that Deployment %s %s: look at kube-controller-manager", s.key, runtime.ErrUnavailable, s.name, what)
	}
	return d, sets, nil
}

// known waits until something holds of what is known, and reports whether it came to that. holds has the lock.
func (r *Runtime) known(ctx context.Context, holds func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	for {
		r.mu.Lock()
		ok, changed := holds(), r.changed
		r.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
