// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
)

// Scope is what one browser may see and do.
type Scope interface {
	// Everything reports whether it may see all namespaces, and the state of nodes.
	Everything() bool
	// Sees reports whether it may see the services of a namespace. known is false if that is not decided yet; then
	// nothing of it is shown.
	Sees(namespace string) (yes, known bool)
	// Resolve returns the service with a name, if the browser may see it.
	Resolve(name string) (v1alpha1.Key, error)
	// Sleep puts a service to sleep, if it may do that.
	Sleep(ctx context.Context, key v1alpha1.Key) error
}

// whole is the Scope of users who may see and do everything.
type whole struct{ Source }

// Everything implements Scope.
func (whole) Everything() bool { return true }

// Sees implements Scope.
func (whole) Sees(string) (yes, known bool) { return true, true }

// sees reports whether data of a service (namespace/name) may be shown. Data without a service belongs to a node.
func sees(s Scope, service string) bool {
	namespace, _, ok := strings.Cut(service, "/")
	if !ok {
		return s.Everything()
	}
	yes, _ := s.Sees(namespace)
	return yes
}
