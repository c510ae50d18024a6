// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"context"
	"fmt"
	"strings"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/show/httpapi"
)

// HasPods returns an error if there is no such service, or if its requests go to other services, which have the pods.
func HasPods(ctx context.Context, c *httpapi.Client, namespace, name string) error {
	all, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.Service.Namespace != namespace || s.Service.Name != name {
			continue
		}
		var revisions []string
		for _, r := range s.Service.Spec.Traffic {
			revisions = append(revisions, r.Revision)
		}
		if revisions != nil {
			return fmt.Errorf("service %s/%s has no pods of its own: name one of its revisions: %s", namespace, name,
				strings.Join(revisions, ", "))
		}
		return nil
	}
	return fmt.Errorf("service %q: %w", namespace+"/"+name, runtime.ErrNotFound)
}
