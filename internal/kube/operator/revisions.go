// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"wangell.loutres.me/api/v1alpha1"
)

// A service that gets requests of others has a finalizer, so that the garbage collector does not end its pods while
// Envoys still lead requests there. No other service has one: the fewer there are, the fewer deletions wait for a
// controller.

// removalPatience is the time beyond its drainTimeout after which a deleted revision does not wait for its pods any
// more.
const removalPatience = time.Minute

// isKept reports whether a service keeps its objects when it is deleted.
func isKept(s *v1alpha1.WangellService) bool {
	return controllerutil.ContainsFinalizer(s, v1alpha1.FinalizerRevision)
}

// keepRevision gives a service the finalizer if others route requests to it, or did until its drainTimeout ago, and
// takes it from any other one. spec is the service with defaults. It returns the time after which to call it again;
// zero for never.
func (r *reconciler) keepRevision(ctx context.Context, key v1alpha1.Key, s, spec *v1alpha1.WangellService) (
	time.Duration, error) {
	if why, _ := v1alpha1.CheckRevision(s); why != "" || !r.requests {
		return r.setKept(ctx, s, false)
	}
	rest := r.oldRequests(key, drainTimeout(spec))
	again, err := r.setKept(ctx, s, r.isRouted(key) || rest > 0)
	return soonest(again, rest), err
}

// drainTimeout returns the drainTimeout of a service with defaults.
func drainTimeout(spec *v1alpha1.WangellService) time.Duration {
	return time.Duration(*spec.Spec.DrainTimeout) * time.Second
}

// setKept is keepRevision for a given outcome. It changes s to the service as it is written.
func (r *reconciler) setKept(ctx context.Context, s *v1alpha1.WangellService, kept bool) (time.Duration, error) {
	if kept == isKept(s) {
		return 0, nil
	}
	switch err := writeKept(ctx, r.client, s, kept); {
	case apierrors.IsConflict(err):
		return statusDelay, nil // the cache is late
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("finalizer %s: %w", v1alpha1.FinalizerRevision, err)
	}
	return 0, nil
}

// writeKept gives a service the finalizer or removes it, unless somebody has changed the service since it was read. It
// changes s to the service as it is written.
func writeKept(ctx context.Context, c client.Client, s *v1alpha1.WangellService, kept bool) error {
	next := s.DeepCopy()
	if kept {
		controllerutil.AddFinalizer(next, v1alpha1.FinalizerRevision)
	} else {
		controllerutil.RemoveFinalizer(next, v1alpha1.FinalizerRevision)
	}
	// A merge patch replaces the whole list: others may have changed it since s was read.
	patch := client.MergeFromWithOptions(s, client.MergeFromWithOptimisticLock{})
	if err := c.Patch(ctx, next, patch, client.FieldOwner(fieldManager)); err != nil {
		return err
	}
	*s = *next
	return nil
}

// leaving is what is known of a revision that is being deleted.
type leaving struct {
	routed     bool // others route requests to it, or did so recently
	put, known bool // it was passed to the controller, which has it
	unreported bool // there may be pods that the controller does not know
	told       bool // the controller was told to remove it
	left       time.Duration
}

// departure is the next step of the removal of a revision.
type departure uint8

const (
	departureWait departure = iota
	departurePut            // pass it to the controller, which otherwise does not know its pods
	departureTell           // have the controller remove it
	departureEnd            // let the garbage collector delete its objects
)

// next decides on the next step.
func (l leaving) next() departure {
	switch {
	case l.left <= 0, !l.told && !l.routed, l.told && !l.known:
		return departureEnd
	case l.told:
		return departureWait
	case !l.put:
		return departurePut
	case !l.known || l.unreported:
		return departureWait
	}
	return departureTell
}

// removeRevision removes a revision that is being deleted: first the routes to it, then its pods, once they have
// answered the requests that they have, and then its other objects.
func (r *reconciler) removeRevision(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService) (
	reconcile.Result, error) {
	spec := s.DeepCopy()
	v1alpha1.Default(spec)
	m := r.remember(key)
	patience := drainTimeout(spec) + removalPatience
	st, known := r.StatusOf(key)
	l := leaving{
		routed: r.requests && (r.isRouted(key) || r.oldRequests(key, drainTimeout(spec)) > 0),
		put:    m.put, known: known, unreported: st.Unreported, told: m.told,
		left: s.DeletionTimestamp.Add(patience).Sub(r.now()),
	}
	switch l.next() {
	case departurePut:
		_, err := r.ensure(ctx, key, spec)
		if err != nil {
			return reconcile.Result{}, err
		}
		r.reconciled(key)
		if !m.put {
			return r.endRevision(ctx, key, s) // it cannot be served
		}
	case departureTell:
		r.noteTraffic(key, nil)
		if err := r.Delete(key); err != nil {
			return reconcile.Result{}, err
		}
		m.told = true
	case departureEnd:
		return r.endRevision(ctx, key, s)
	}
	if m.told {
		return reconcile.Result{RequeueAfter: l.left}, nil // earlier once the controller has removed it
	}
	return reconcile.Result{RequeueAfter: min(l.left, reportPause)}, nil
}

// endRevision lets the garbage collector delete the objects of a revision.
func (r *reconciler) endRevision(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService) (
	reconcile.Result, error) {
	again, err := r.setKept(ctx, s, false)
	if err != nil || again > 0 {
		return reconcile.Result{RequeueAfter: again}, err
	}
	defer r.noteTraffic(key, nil)
	return reconcile.Result{}, r.forget(key)
}
