// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math/rand/v2"
	"time"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
)

// grantFor is how long a node may fetch a blob from another one without asking again. Clocks of nodes may differ by as
// much.
const grantFor = time.Hour

// blobs answers nodes that fetch blobs of images which other nodes have them. It belongs to the loop.
type blobs struct {
	key      wire.Key // the master key
	daemons  *daemons
	prefetch *prefetcher // nil on one machine, where there is no mirror
	index    blobindex.Index
	mirrors  map[string]mirror // by node
}

// mirror is where a node shares blobs.
type mirror struct {
	wire.Mirror
	session uint64
}

// joined records the mirror of a node. Its reports follow.
func (b *blobs) joined(from wire.Peer, m *wire.Mirror) {
	b.index.Forget(from.Node)
	b.mirrors[from.Node] = mirror{*m, from.ID}
	b.prefetch.mirrors(from)
}

// left forgets the mirror of a node.
func (b *blobs) left(from wire.Peer) {
	if b.mirrors[from.Node].session == from.ID {
		b.index.Forget(from.Node)
		delete(b.mirrors, from.Node)
	}
}

// received notes what a node reports, and answers.
func (b *blobs) received(from wire.Peer, m *wire.Blobs, now time.Time) {
	asker := b.mirrors[from.Node]
	if b.prefetch == nil || asker.session != from.ID {
		return
	}
	for _, o := range m.Blobs {
		answer, ok := b.index.Report(from.Node, blobindex.Report{
			Key: blobindex.Key{Repository: m.Repository, Digest: o.Digest}, Size: o.Size, State: blobindex.State(o.State),
			Have: swarm.Set(o.Have), NoRegistry: m.NoRegistry,
		}, now, rand.IntN)
		if ok && b.prefetch.shares(from.Node, m.Repository) {
			b.daemons.send(from.ID, b.holders(asker, answer, now))
		}
	}
}

// holders converts an answer of the index to its form on the wire.
func (b *blobs) holders(asker mirror, a blobindex.Answer, now time.Time) *wire.Holders {
	out := &wire.Holders{
		Repository: a.Repository, Digest: a.Digest, Size: a.Size, PauseMillis: uint16(a.Pause.Milliseconds()),
		Lease: a.Lease, Expires: uint64(now.Add(grantFor).Unix()),
	}
	for _, h := range a.Holders {
		at, ok := b.mirrors[h.Node]
		if !ok || !b.prefetch.shares(h.Node, a.Repository) {
			continue
		}
		out.Holders = append(out.Holders, wire.Holder{
			Mirror: at.Mirror, Complete: h.Complete, Have: h.Have,
			Grant: enrolment.NewGrant(b.key.ForNode(h.Node), asker.Fingerprint, a.Digest, out.Expires),
		})
	}
	return out
}
