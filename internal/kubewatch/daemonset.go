// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"log/slog"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/kubernetes/typed/apps/v1"
)

// DaemonSet tells whether the DaemonSet of the daemons is being taken away: then the daemon that ends is the last one of
// its node. It is watched all along, because whoever takes it away takes the right to ask for it too.
type DaemonSet struct {
	// DaemonSets is a client for its namespace, Name its name.
	DaemonSets v1.DaemonSetInterface
	Name       string
	Log        *slog.Logger

	going atomic.Bool
}

// Going tells whether it was deleted, or is being.
func (d *DaemonSet) Going() bool { return d.going.Load() }

// Follow watches it until ctx ends.
func (d *DaemonSet) Follow(ctx context.Context) {
	there := false
	items := func(list *appsv1.DaemonSetList) []appsv1.DaemonSet { return list.Items }
	follow(ctx, d.Log, d.Name, source[*appsv1.DaemonSetList](d.DaemonSets), items, func(set *appsv1.DaemonSet) {
		// One that never was there has another name: nothing follows from that.
		there = there || set != nil
		d.going.Store(there && (set == nil || set.DeletionTimestamp != nil))
	})
}
