// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/typed/apps/v1"
)

// lastLook bounds the request of Deleted.
const lastLook = 3 * time.Second

// DaemonSet follows the DaemonSet of the daemons, to know whether it is being deleted: then a daemon that ends is the
// last one of its node. It is watched all the time, because the right to read it may be deleted together with it.
type DaemonSet struct {
	DaemonSets v1.DaemonSetInterface // client for its namespace
	Name       string
	Log        *slog.Logger

	existed, deleted atomic.Bool
}

// Deleted reports whether the DaemonSet was deleted, or is being deleted. A daemon may be asked to end before its
// watch has reported that, so Deleted asks the API server once more, for at most a few seconds. A server that now
// forbids the request counts as well: the rights are removed together with the DaemonSet. One that no longer accepts
// the token does not: tokens end with their pods.
func (d *DaemonSet) Deleted(ctx context.Context) bool {
	if d.deleted.Load() || !d.existed.Load() {
		return d.deleted.Load()
	}
	ctx, cancel := context.WithTimeout(ctx, lastLook)
	defer cancel()
	list, err := d.DaemonSets.List(ctx, byName(d.Name))
	switch {
	case apierrors.IsForbidden(err):
		return true
	case err != nil:
		d.Log.Warn("cannot ask whether the DaemonSet is being deleted: the gate stays", "daemonset", d.Name, "error", err)
		return false
	case len(list.Items) == 0:
		return true
	default:
		return list.Items[0].DeletionTimestamp != nil
	}
}

// Follow watches the DaemonSet until ctx ends.
func (d *DaemonSet) Follow(ctx context.Context) {
	items := func(list *appsv1.DaemonSetList) []appsv1.DaemonSet { return list.Items }
	follow(ctx, d.Log, d.Name, source[*appsv1.DaemonSetList](d.DaemonSets), items, func(set *appsv1.DaemonSet) {
		// If none ever existed, the name is wrong, which proves nothing.
		if set != nil {
			d.existed.Store(true)
		}
		d.deleted.Store(d.existed.Load() && (set == nil || set.DeletionTimestamp != nil))
	})
}
