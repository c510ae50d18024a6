// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"wangell.loutres.me/internal/lazy/failures"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/shorten"
	"wangell.loutres.me/internal/wire"
)

const (
	// watchAgain is how long after the end of the snapshotter, or while there is none, it is looked for again.
	watchAgain = 5 * time.Second
	// unreadableFor is how long other nodes are preferred to one that cannot get all of an image.
	unreadableFor = 5 * time.Minute
)

// watchUnreadable reports pods whose files cannot be had, until ctx ends. The snapshotter repeats what it remembers to
// each daemon.
func (d *daemon) watchUnreadable(ctx context.Context) {
	for ctx.Err() == nil {
		// An error means that there is no snapshotter, or that it has ended: its successor ends the pods.
		_ = failures.Watch(ctx, failures.Socket(d.cfg.LazySocket), func(f failures.Failure) {
			d.images.unreadable(ctx, f)
		})
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
}

// unreadable reports the pods that use a layer of which something cannot be had, and the images that have it.
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
		i.log.Warn("cannot tell which pods use a layer that cannot be had", "layer", f.Layer, "error", err)
	}
	for _, uid := range uids {
		i.send(&wire.Unreadable{UID: uid, Cause: shorten.Text(why, wire.MaxImageText)})
	}
}
