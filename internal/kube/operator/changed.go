// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"wangell.loutres.me/api/v1alpha1"
)

// statusDelay is the time from a change of a service's state to its reconciliation, in which further changes are
// gathered: a wake should not compete with reports of each of its steps to the API server.
const statusDelay = 300 * time.Millisecond

// changedServices adds services to the reconciler's queue. Those that are added before the queue exists are dropped:
// the reconciler begins with all services.
type changedServices struct {
	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// add never blocks.
func (s *changedServices) add(keys ...v1alpha1.Key) {
	q := s.queue.Load()
	if q == nil {
		return
	}
	for _, k := range keys {
		namespace, name := k.Split()
		(*q).AddAfter(reconcile.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}, statusDelay)
	}
}

func (s *changedServices) source() source.Source {
	return source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		s.queue.Store(&q)
		return nil
	})
}
