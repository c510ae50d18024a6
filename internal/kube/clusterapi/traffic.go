// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"wangell.loutres.me/api/v1alpha1"
)

// fieldManager is the name of the plugin in managed fields.
const fieldManager = "kubectl-wangell"

// MoveTraffic replaces spec.traffic of a service on the API server by the result of change. It returns the old and
// the new traffic. If somebody else writes the service meanwhile, change is called again.
func MoveTraffic(ctx context.Context, c *rest.Config, namespace, name string,
	change func([]v1alpha1.Revision) ([]v1alpha1.Revision, error)) (from, to []v1alpha1.Revision, err error) {
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, nil, err
	}
	of := client.Resource(v1alpha1.Resource).Namespace(namespace)
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object, err := of.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var s v1alpha1.WangellService
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &s); err != nil {
			return err
		}
		from = s.Spec.Traffic
		if to, err = change(from); err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": object.GetResourceVersion()}, // nobody has written it meanwhile
			"spec":     map[string]any{"traffic": to},
		})
		if err != nil {
			return err
		}
		_, err = of.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, fmt.Errorf("service %s/%s: not found: see 'kubectl wangell ps'", namespace, name)
	case apierrors.IsForbidden(err):
		return nil, nil, fmt.Errorf("service %s/%s: you need the right to get and patch wangellservices: %w",
			namespace, name, err)
	case err != nil:
		return nil, nil, fmt.Errorf("service %s/%s: %w", namespace, name, err)
	}
	return from, to, nil
}
