// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/images/lazy/failures"
	"wangell.loutres.me/internal/wire"
)

const (
	// watchAgain is the pause between two attempts to connect to the snapshotter.
	watchAgain = 5 * time.Second
	// unreadableFor is how long other nodes are preferred to one that could not fetch all of an image.
	unreadableFor = 5 * time.Minute
)

// watchUnreadable reports pods whose files cannot be fetched, until ctx ends. The snapshotter repeats its known
// failures to each new daemon.
func (d *daemon) watchUnreadable(ctx context.Context) {
	for ctx.Err() == nil {
		// An error means that there is no snapshotter, or that it has ended: its successor reports the failures
		// again.
		_ = failures.Watch(ctx, failures.Socket(d.cfg.LazySocket), func(f failures.Failure) {
			d.images.unreadable(ctx, f)
		})
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// unreadable reports the pods that use an unreadable layer, and the images that contain it.
func (i *images) unreadable(ctx context.Context, f failures.Failure) {
	why := f.String()
	until := time.Now().Add(unreadableFor - monotime.Now().Sub(f.At))
	for _, r := range i.keeper.Reports() {
		if i.store.HasLayer(ctx, r.Ref, f.Layer) {
			i.keeper.Unreadable(r.Ref, why, until)
		}
	}
	uids, err := i.store.LazyPods(ctx, f.Layer, f.At)
	if err != nil {
		i.log.Warn("cannot find out which pods use a layer that cannot be fetched", "layer", f.Layer, "error", err)
	}
	for _, uid := range uids {
		i.send(&wire.Unreadable{UID: uid, Cause: text.Shorten(why, wire.MaxImageText)})
	}
}
