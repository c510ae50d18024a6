// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"wangell.loutres.me/internal/images/peer"
	"wangell.loutres.me/internal/images/prefetch"
	"wangell.loutres.me/internal/node/cri"
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

// add adds a piece, and returns the set after the last one. Pieces of an older generation, and those that do not
// follow the one before, are dropped.
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
