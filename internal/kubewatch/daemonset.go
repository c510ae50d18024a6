// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"log/slog"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/kubernetes/typed/apps/v1"
)

// DaemonSet follows the DaemonSet of the daemons, to know whether it is being deleted: then a daemon that ends is the
// last one of its node. It is watched all the time, because the right to read it may be deleted together with it.
type DaemonSet struct {
	DaemonSets v1.DaemonSetInterface // client for its namespace
	Name       string
	Log        *slog.Logger

	deleted atomic.Bool
}

// Deleted reports whether the DaemonSet was deleted, or is being deleted.
func (d *DaemonSet) Deleted() bool { return d.deleted.Load() }

// Follow watches the DaemonSet until ctx ends.
func (d *DaemonSet) Follow(ctx context.Context) {
	existed := false
	items := func(list *appsv1.DaemonSetList) []appsv1.DaemonSet { return list.Items }
	follow(ctx, d.Log, d.Name, source[*appsv1.DaemonSetList](d.DaemonSets), items, func(set *appsv1.DaemonSet) {
		// If none ever existed, the name is wrong: that says nothing.
		existed = existed || set != nil
		d.deleted.Store(existed && (set == nil || set.DeletionTimestamp != nil))
	})
}
