// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
)

// revisionRetry is the pause before the revisions of a service are checked again.
const revisionRetry = 5 * time.Second

// noteTraffic records the revisions of a service, and reconciles again those for which that has changed something, and
// the services that route requests to it: it may have been created, deleted or changed.
func (r *reconciler) noteTraffic(key v1alpha1.Key, s *v1alpha1.WangellService) {
	r.mu.Lock()
	var again []v1alpha1.Key
	if s == nil {
		again = r.traffics.set(key, "", nil)
	} else {
		again = r.traffics.set(key, s.Namespace, s.Spec.Traffic)
		for _, k := range again {
			if r.unrouted[k] = r.now(); len(r.traffics[k]) > 0 {
				delete(r.unrouted, k)
			}
		}
	}
	again = append(again, r.traffics.to(key)...)
	r.mu.Unlock()
	if r.again != nil {
		r.again(again...)
	}
}

// withRouted returns services and those that route requests to them.
func (r *reconciler) withRouted(keys []v1alpha1.Key) []v1alpha1.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		keys = append(keys, r.traffics.to(key)...)
	}
	return keys
}

// isRouted reports whether other services route requests to one.
func (r *reconciler) isRouted(key v1alpha1.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.traffics[key]) > 0
}

// oldRequests returns for how long a service may still have requests of others: within, counted from the change that
// left it out of their traffic. It is zero for all other services.
func (r *reconciler) oldRequests(key v1alpha1.Key, within time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, ok := r.unrouted[key]
	if !ok {
		return 0
	}
	return max(since.Add(within).Sub(r.now()), 0)
}

// checkRevisions describes what is wrong with the revisions of a service; empty if nothing is.
func (r *reconciler) checkRevisions(ctx context.Context, s *v1alpha1.WangellService) (string, error) {
	for i, t := range s.Spec.Traffic {
		var to v1alpha1.WangellService
		err := r.client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: t.Revision}, &to)
		at := fmt.Sprintf("spec.traffic[%d].revision", i)
		switch {
		case apierrors.IsNotFound(err) || err == nil && to.DeletionTimestamp != nil:
			return fmt.Sprintf("%s: there is no WangellService %s in namespace %s: the other revisions get its requests, or "+
				"clients wait if there is none: create it, or remove the revision", at, t.Revision, s.Namespace), nil
		case err != nil:
			return "", err
		}
		if why, fix := v1alpha1.CheckRevision(&to); why != "" {
			return fmt.Sprintf("%s: %s cannot be a revision: %s: %s", at, t.Revision, why, fix), nil
		}
	}
	return "", nil
}

// ensureNoDeployment deletes the Deployment of a service that had pods of its own, once they are gone. again reports
// that it must be called again.
func (r *reconciler) ensureNoDeployment(ctx context.Context, s *v1alpha1.WangellService) (again bool, err error) {
	var d appsv1.Deployment
	switch err := r.client.Get(ctx, client.ObjectKeyFromObject(s), &d); {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at Deployment %s/%s: %w", s.Namespace, s.Name, err)
	case !metav1.IsControlledBy(&d, s):
		return false, nil
	case d.Spec.Replicas == nil || *d.Spec.Replicas > 0 || d.Status.Replicas > 0:
		return true, nil
	}
	if err := r.client.Delete(ctx, &d, client.Preconditions{UID: &d.UID}); err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete Deployment %s/%s, as its service has traffic: %w", s.Namespace, s.Name, err)
	}
	return false, nil
}
