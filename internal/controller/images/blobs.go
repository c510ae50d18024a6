// SPDX-License-Identifier: Apache-2.0

package images

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
)

// GrantFor is how long a node may fetch a blob from another one without asking again. Clocks of nodes may differ by as
// much.
const GrantFor = time.Hour

// Blobs answers nodes that fetch blobs of images which other nodes have them. Its methods do nothing if it is
// nil, as on one machine, where there is no mirror.
type Blobs struct {
	key     wire.Key // the master key
	planner *Planner
	addrOf  func(node string) netip.Addr
	index   blobindex.Index
	mirrors map[string]mirror // by node
}

// NewBlobs returns the Blobs of a planner's nodes. key is the controller's master key, from which the keys of
// nodes follow. addrOf returns the address of a node as the cluster has it: nodes are sent nowhere else for blobs.
func NewBlobs(key wire.Key, planner *Planner, addrOf func(node string) netip.Addr) *Blobs {
	return &Blobs{key: key, planner: planner, addrOf: addrOf, mirrors: map[string]mirror{}}
}

// mirror is where a node shares blobs.
type mirror struct {
	wire.Mirror
	session uint64
}

// Joined records the mirror of a node. Its reports follow.
func (b *Blobs) Joined(from wire.Peer, m *wire.Mirror) {
	if b == nil {
		return
	}
	b.index.Forget(from.Node)
	b.mirrors[from.Node] = mirror{*m, from.ID}
	b.planner.mirrors(from)
}

// Left forgets the mirror of a node.
func (b *Blobs) Left(from wire.Peer) {
	if b == nil {
		return
	}
	if b.mirrors[from.Node].session == from.ID {
		b.index.Forget(from.Node)
		delete(b.mirrors, from.Node)
	}
}

// Reported notes what a node reports, and answers.
func (b *Blobs) Reported(from wire.Peer, m *wire.Blobs, now time.Time) {
	if b == nil {
		return
	}
	asker := b.mirrors[from.Node]
	if asker.session != from.ID {
		return
	}
	for _, o := range m.Blobs {
		answer, ok := b.index.Report(from.Node, blobindex.Report{
			Key: blobindex.Key{Repository: m.Repository, Digest: o.Digest}, Size: o.Size, State: blobindex.State(o.State),
			Have: swarm.Set(o.Have), NoRegistry: m.NoRegistry,
		}, now, rand.IntN)
		if ok && b.planner.shares(from.Node, m.Repository) {
			b.planner.host.Send(from.ID, b.holders(asker, answer, now))
		}
	}
}

// holders converts an answer of the index to its form on the wire.
func (b *Blobs) holders(asker mirror, a blobindex.Answer, now time.Time) *wire.Holders {
	out := &wire.Holders{
		Repository: a.Repository, Digest: a.Digest, Size: a.Size, PauseMillis: uint16(a.Pause.Milliseconds()),
		Lease: a.Lease, Expires: uint64(now.Add(GrantFor).Unix()),
	}
	for _, h := range a.Holders {
		at, ok := b.mirrors[h.Node]
		if !ok || at.Addr.Addr() != b.addrOf(h.Node) || !b.planner.shares(h.Node, a.Repository) {
			continue
		}
		out.Holders = append(out.Holders, wire.Holder{
			Mirror: at.Mirror, Complete: h.Complete, Have: h.Have,
			Grant: enrolment.NewGrant(b.key.ForNode(h.Node), asker.Fingerprint, a.Digest, out.Expires),
		})
	}
	return out
}
