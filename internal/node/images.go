// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/images/lazy/failures"
	"wangell.loutres.me/internal/images/peer"
	"wangell.loutres.me/internal/images/prefetch"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
)

// releaseTimeout bounds how long the removal of the gate waits for the container runtime.
const releaseTimeout = 5 * time.Second

// images keeps the images that the controller wants on the node.
type images struct {
	store  *cri.Images
	keeper *prefetch.Keeper
	mirror *peer.Mirror // nil: none
	log    *slog.Logger
	send   func(wire.Message) // to the controller

	mu           sync.Mutex // guards the sets that are being received
	set          pieces[wire.WantedImage]
	repositories pieces[string]
}

// beginSession sends all image states to the controller of a new session.
func (i *images) beginSession(send func(wire.Message)) {
	i.mu.Lock()
	i.set, i.repositories = pieces[wire.WantedImage]{}, pieces[string]{}
	i.mu.Unlock()
	for part := range slices.Chunk(i.keeper.Reports(), wire.MaxImageReports) {
		send(&wire.ImageReports{Images: part})
	}
	if i.mirror != nil {
		i.mirror.BeginSession(send)
	}
}

// receive adds a piece of the set. The set is used once it is complete.
func (i *images) receive(m *wire.Images) {
	i.mu.Lock()
	defer i.mu.Unlock()
	set, whole := i.set.add(m.Generation, m.Piece, m.Pieces, m.Images)
	if !whole {
		return
	}
	if i.mirror != nil {
		i.mirror.Want(set)
	}
	i.keeper.Want(set)
}

// receiveRepositories adds a piece of the set of repositories.
func (i *images) receiveRepositories(m *wire.Repositories) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if set, whole := i.repositories.add(m.Generation, m.Piece, m.Pieces, m.Names); whole && i.mirror != nil {
		i.mirror.Need(set)
	}
}

// pieces is a set that is being received.
type pieces[T any] struct {
	generation uint64
	next       uint16
	items      []T // so far
}

// add adds a piece, and returns the set after the last one. Pieces of an older generation, and pieces out of order, are
// dropped.
func (p *pieces[T]) add(generation uint64, piece, of uint16, items []T) (set []T, whole bool) {
	switch {
	case generation < p.generation:
		return nil, false
	case piece == 0:
		*p = pieces[T]{generation: generation}
	case generation != p.generation || piece != p.next:
		p.next, p.items = 0, nil
		return nil, false
	}
	p.next++
	p.items = append(p.items, items...)
	if p.next < of {
		return nil, false
	}
	set, p.next, p.items = p.items, 0, nil
	return set, true
}

// release lets go of all images, because Wangell is being uninstalled.
func (i *images) release() error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	return errors.Join(i.keeper.Release(ctx), i.store.Close())
}

// newMirror returns the mirror of this node; nil if it is off or cannot listen, in which case images are pulled
// without it.
func (d *daemon) newMirror() *peer.Mirror {
	c := d.cfg.Peers
	if c.Port == 0 || !d.cfg.NodeAddr.IsValid() {
		return nil
	}
	d.key.set(d.cfg.Keys.Node)
	store, _ := d.images.store.Content(d.ctx)
	m, err := peer.New(peer.Config{
		Content: store, Dir: filepath.Join(c.Dir, "blobs"), Hosts: c.Hosts, Caches: c.Caches, Layers: c.Layers,
		Local:  c.local(),
		Listen: netip.AddrPortFrom(d.cfg.NodeAddr, c.Port), Rate: c.Rate, Key: d.key.get,
		Send:   func(m wire.Message) { d.send(m) },
		Images: d.images.store.Digests, Log: d.log,
	})
	if err != nil {
		d.log.Error("this node does not share images with others", "error", err)
		return nil
	}
	if err := peer.InstallHosts(c.Hosts, c.local()); err != nil {
		d.log.Warn("containerd may not ask this node's mirror", "error", err)
	}
	return m
}

// newImages returns the images of the container runtime at an endpoint.
func (d *daemon) newImages(endpoint string, send func(wire.Message)) (*images, error) {
	store, err := cri.OpenImages(endpoint)
	if err != nil {
		return nil, err
	}
	i := &images{store: store, log: d.log, send: send}
	i.keeper = prefetch.New(prefetch.Config{
		Store: store, Log: d.log,
		Report: func(r wire.ImageReport) {
			send(&wire.ImageReports{Images: []wire.ImageReport{r}})
			if i.mirror != nil && r.State == wire.ImagePresent {
				i.mirror.Scan()
			}
		},
		Progress: func(p wire.ImagePulled) { send(&p) },
	})
	return i, nil
}

// runMirror runs the mirror until ctx ends.
func (d *daemon) runMirror(ctx context.Context) {
	_, ctx = d.images.store.Content(ctx)
	d.images.mirror.Run(ctx)
}

// removeHosts removes the daemon's settings for containerd, because Wangell is being uninstalled.
func (d *daemon) removeHosts() {
	if dir := d.cfg.Peers.Hosts; dir != "" {
		if err := peer.RemoveHosts(dir); err != nil {
			d.log.Warn("containerd goes on asking for this node's mirror, and then the registry", "error", err)
		}
	}
}

const (
	// watchAgain is the pause between two attempts to connect to the snapshotter.
	watchAgain = 5 * time.Second
	// unreadableFor is how long a node that could not fetch all of an image ranks behind other nodes.
	unreadableFor = 5 * time.Minute
)

// watchUnreadable reports pods whose files cannot be fetched, until ctx ends. The snapshotter repeats its known
// failures to each new daemon.
func (d *daemon) watchUnreadable(ctx context.Context) {
	for ctx.Err() == nil {
		// After an error, there is no snapshotter, or it has ended: its successor reports the failures again.
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
