// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"wangell.loutres.me/api/v1alpha1"
)

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	select {
	case <-r.begun:
	case <-ctx.Done():
		return reconcile.Result{}, ctx.Err()
	}
	key := v1alpha1.Key(req.Namespace + "/" + req.Name)
	var s v1alpha1.WangellService
	err := r.client.Get(ctx, req.NamespacedName, &s)
	switch {
	case err == nil && s.DeletionTimestamp != nil && isKept(&s):
		return r.removeRevision(ctx, key, &s)
	case apierrors.IsNotFound(err) || err == nil && s.DeletionTimestamp != nil:
		defer r.noteTraffic(key, nil)
		return reconcile.Result{}, r.forget(key)
	case err != nil:
		return reconcile.Result{}, err
	}
	spec := s.DeepCopy()
	v1alpha1.Default(spec)
	if s.Generation != r.remember(key).seen { // and not each time that its state changes
		r.remember(key).seen = s.Generation
		r.noteTraffic(key, spec)
	}
	out, err := r.ensure(ctx, key, spec)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.reconciled(key)
	kept, err := r.keepRevision(ctx, key, &s, spec)
	if err != nil {
		return reconcile.Result{}, err
	}
	synced, err := r.syncReplicas(ctx, key, &s, out)
	if err != nil {
		return reconcile.Result{}, err
	}
	written, err := r.writeStatus(ctx, key, &s, out)
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: soonest(kept, synced, written, out.retry)}, nil
}
