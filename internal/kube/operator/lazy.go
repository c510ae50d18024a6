// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
)

// pullsLazily reports whether the pods of a service start before their image is complete. While the controller does
// not know the nodes, the Deployment stays as it is.
func (r *reconciler) pullsLazily(ctx context.Context, key v1alpha1.Key, s *v1alpha1.WangellService) (bool, error) {
	if !s.Spec.PullsLazily() || !r.lazy {
		return false, nil
	}
	if st, known := r.StatusOf(key); known && st.Lazy != status.LazyUndecided {
		return st.Lazy == status.LazyOn, nil
	}
	var d appsv1.Deployment
	err := r.client.Get(ctx, client.ObjectKeyFromObject(s), &d)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("look at Deployment %s: %w", key, err)
	}
	class := d.Spec.Template.Spec.RuntimeClassName
	return class != nil && *class == v1alpha1.LazyRuntime, nil
}
