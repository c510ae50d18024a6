// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
)

// putLastGood passes a service whose spec is invalid or refused to the controller of a new leader, with the last spec
// of its Deployment and its former address: its pods serve, and a mistake in the manifest must not end that when the
// leader changes. A service without a valid last spec is left out.
func (r *reconciler) putLastGood(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService) error {
	a, err := netip.ParseAddr(s.Status.LoadBalancerIP)
	if err != nil || !usable(a) {
		return nil
	}
	var d appsv1.Deployment
	switch err := r.client.Get(ctx, client.ObjectKeyFromObject(s), &d); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case !metav1.IsControlledBy(&d, s):
		return nil
	}
	last := &v1alpha1.WangellService{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.UID}}
	if json.Unmarshal([]byte(d.Annotations[lastGood]), &last.Spec) != nil {
		return nil // no last spec
	}
	v1alpha1.Default(last)
	if len(v1alpha1.ValidateCluster(last)) > 0 || ours(last) && !r.takeHeld(key, a) {
		return nil
	}
	last.Spec.UpdateStrategy = r.claims.decide(key, last).Strategy
	err = r.Put(controller.Service{Spec: last, Addr: a, Announce: announced(last), Digests: s.Status.ImageDigests,
		History: s.Status.UseHistory})
	if err == nil {
		r.remember(key).put = true
	}
	if errors.Is(err, controller.ErrClosed) {
		return err
	}
	return nil // the outcome has the error
}

// takeHeld claims an address for the service that had it, and reports whether that is possible.
func (r *reconciler) takeHeld(key v1alpha1.Key, a netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, taken := r.book.held[a]; taken {
		return other == key
	}
	if _, has := r.book.of[key]; has {
		return false // it has another one
	}
	r.book.take(key, a)
	return true
}
