// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/cri"
	"wangell.loutres.me/internal/peer"
	"wangell.loutres.me/internal/prefetch"
	"wangell.loutres.me/internal/wire"
)

// releaseTimeout bounds how long the removal of the gate waits for the container runtime.
const releaseTimeout = 5 * time.Second

// images keeps the images on the node that the controller wants.
type images struct {
	store  *cri.Images
	keeper *prefetch.Keeper
	mirror *peer.Mirror // nil: none
	log    *slog.Logger
	send   func(wire.Message) // to the controller

	mu         sync.Mutex // guards the set that is being received
	generation uint64
	pieces     []*wire.Images // so far of the next set
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

// beginSession sends all image states to the controller of a new session.
func (i *images) beginSession(send func(wire.Message)) {
	i.mu.Lock()
	i.generation, i.pieces = 0, nil
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
	switch {
	case m.Generation < i.generation:
		return
	case m.Piece == 0:
		i.generation, i.pieces = m.Generation, nil
	case m.Generation != i.generation || int(m.Piece) != len(i.pieces):
		i.pieces = nil
		return
	}
	i.pieces = append(i.pieces, m)
	if len(i.pieces) < int(m.Pieces) {
		return
	}
	var set []wire.WantedImage
	for _, p := range i.pieces {
		set = append(set, p.Images...)
	}
	i.pieces = nil
	if i.mirror != nil {
		i.mirror.Want(set)
	}
	i.keeper.Want(set)
}

// release lets go of all images, because Wangell is being uninstalled.
func (i *images) release() error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	return errors.Join(i.keeper.Release(ctx), i.store.Close())
}
