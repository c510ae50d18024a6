// SPDX-License-Identifier: Apache-2.0

// Package blobindex is the controller's index of which nodes have which blobs of images, with parts while they are
// fetched. A node that fetches a blob learns which other nodes have pieces of it, and which pieces to get from the
// registry, so that each piece leaves the registry once. The index only answers reports of nodes. Time and chance are
// parameters, and nothing in it outlives the reports: a new index is filled by the nodes' next ones.
package blobindex

import (
	"time"

	"wangell.loutres.me/internal/decide/swarm"
)

// Limits of the index.
const (
	// MaxHolders is how many nodes an answer names.
	MaxHolders = 8
	// maxBlobs bounds the blobs that one node can have in the index, and maxPartial those that it fetches at a time.
	maxBlobs   = 1 << 15
	maxPartial = 64

	leasesPerNode = 4  // pieces of one blob that a node may get from the registry at a time; fewer if many fetch it
	leasesPerBlob = 32 // by all nodes together
	// leaseTime is how long a node has for a piece, and silence how long it may be silent meanwhile.
	leaseTime = 30 * time.Second
	silence   = 5 * time.Second

	// Between two reports about a blob, a node waits for minPause, or longer if all nodes together would otherwise
	// report more often than once per perReport.
	minPause  = 200 * time.Millisecond
	maxPause  = 5 * time.Second
	perReport = 250 * time.Microsecond
)

// Key is a blob of a repository. As in a registry, each repository has its own blobs: access to one does not imply
// access to the same blob in another.
type Key struct {
	// Repository has the registry's name: "docker.io/library/nginx".
	Repository string
	// Digest is a SHA-256.
	Digest [32]byte
}

// State says how much of a blob a node has.
type State uint8

// The values of State.
const (
	Gone     State = 1 // nothing, and it does not fetch it
	Partial  State = 2 // some pieces, or none yet, and it is fetching the others
	Complete State = 3 // all, with the right digest
)

// Report is a node's report about a blob.
type Report struct {
	Key
	// Size in bytes; 0 in a Partial report that only asks for it and for the holders.
	Size  uint64
	State State
	// Have are the pieces of a Partial blob.
	Have swarm.Set
	// NoRegistry is set if the node cannot reach the registry.
	NoRegistry bool
}

// Holder is a node with pieces that another one needs.
type Holder struct {
	Node     string
	Complete bool
	Have     swarm.Set // of a blob that is not complete
}

// Answer tells a node how to go on with a Partial blob.
type Answer struct {
	Key
	// Size of the blob in bytes; 0 if no node has it.
	Size uint64
	// Lease are the pieces that the node should fetch from the registry.
	Lease   swarm.Set
	Holders []Holder
	// Pause is how long the node waits before its next report about the blob, unless it has nothing more to do.
	Pause time.Duration
}

// Index is an index. The zero value is empty. It is not safe for concurrent use.
type Index struct {
	blobs   map[Key]*blob
	nodes   map[string]*member
	partial int // blobs that are being fetched, counted for each node
}

// member is a node.
type member struct {
	blobs   map[Key]bool
	partial int // of them
}

// blob is what nodes have of one blob.
type blob struct {
	size    uint64
	pieces  int
	holders []*holder // in no order
	byNode  map[string]*holder
	whole   int      // number of holders with all of it
	held    []uint16 // number of holders by piece, without those with all of it; nil before there is one
	leases  []lease  // by piece; likewise
	leased  int      // number of leases
}

// holder is a node with at least a part of a blob, or that wants it.
type holder struct {
	node   string
	at     int // in blob.holders
	state  State
	have   swarm.Set
	heard  time.Time
	leases int
}

// lease assigns a node a piece to get from the registry.
type lease struct {
	holder *holder // nil: none
	since  time.Time
}

// Report records a node's report. Reports that contradict others or themselves are ignored. ok is true if there is an
// answer, which only Partial blobs have.
func (x *Index) Report(node string, r Report, now time.Time, random func(n int) int) (a Answer, ok bool) {
	if r.State == Gone {
		x.drop(node, r.Key)
		return Answer{}, false
	}
	b := x.blobs[r.Key]
	if r.Size == 0 {
		return x.ask(r, b, random)
	}
	switch {
	case b != nil && b.size != r.Size, !r.Have.Fits(swarm.Pieces(r.Size)):
		return Answer{}, false
	case !x.room(node, r):
		return Answer{}, false
	case b == nil:
		b = x.add(r)
	}
	n := x.nodes[node]
	if n == nil {
		n = &member{blobs: map[Key]bool{}}
		x.nodes[node] = n
	}
	h := b.byNode[node]
	if h == nil {
		h = &holder{node: node, at: len(b.holders)}
		b.holders = append(b.holders, h)
		b.byNode[node] = h
		n.blobs[r.Key] = true
	}
	x.change(n, b, h, r, now)
	if r.State != Partial {
		return Answer{}, false
	}
	b.expire(now)
	if r.NoRegistry {
		b.release(h)
	} else if b.whole == 0 {
		b.assign(h, now)
	}
	return Answer{
		Key: r.Key, Size: b.size, Lease: b.leaseOf(h), Holders: b.sample(h, random),
		Pause: min(max(minPause, time.Duration(x.partial)*perReport), maxPause),
	}, true
}

// ask answers a report without a size, which is not recorded.
func (x *Index) ask(r Report, b *blob, random func(int) int) (Answer, bool) {
	a := Answer{Key: r.Key, Pause: minPause}
	if b != nil {
		a.Size, a.Holders = b.size, b.sample(&holder{}, random)
	}
	return a, r.State == Partial
}

// Forget forgets a node.
func (x *Index) Forget(node string) {
	if n := x.nodes[node]; n != nil {
		for k := range n.blobs {
			x.drop(node, k)
		}
	}
}

// room reports whether there is room for a node's report.
func (x *Index) room(node string, r Report) bool {
	n := x.nodes[node]
	if n == nil {
		return true
	}
	b := x.blobs[r.Key]
	known := n.blobs[r.Key]
	fetches := known && b.byNode[node].state == Partial
	return (known || len(n.blobs) < maxBlobs) && (r.State != Partial || fetches || n.partial < maxPartial)
}

func (x *Index) add(r Report) *blob {
	if x.blobs == nil {
		x.blobs, x.nodes = map[Key]*blob{}, map[string]*member{}
	}
	b := &blob{size: r.Size, pieces: swarm.Pieces(r.Size), byNode: map[string]*holder{}}
	x.blobs[r.Key] = b
	return b
}

// drop removes a node from the holders of a blob.
func (x *Index) drop(node string, k Key) {
	b := x.blobs[k]
	if b == nil || b.byNode[node] == nil {
		return
	}
	h := b.byNode[node]
	n := x.nodes[node]
	x.change(n, b, h, Report{State: Gone}, h.heard)
	last := b.holders[len(b.holders)-1]
	b.holders[h.at], last.at = last, h.at
	b.holders = b.holders[:len(b.holders)-1]
	delete(b.byNode, node)
	delete(n.blobs, k)
	if len(n.blobs) == 0 {
		delete(x.nodes, node)
	}
	if len(b.holders) == 0 {
		delete(x.blobs, k)
	}
}

// change records the new state of a holder of a blob.
func (x *Index) change(n *member, b *blob, h *holder, r Report, now time.Time) {
	if b.held == nil && r.State == Partial {
		b.held, b.leases = make([]uint16, b.pieces), make([]lease, b.pieces)
	}
	for p := range b.held {
		was, is := h.state == Partial && h.have.Has(p), r.State == Partial && r.Have.Has(p)
		if is && !was {
			b.held[p]++
		} else if was && !is {
			b.held[p]--
		}
		if l := &b.leases[p]; l.holder == h && (is || r.State != Partial) {
			b.end(l)
		}
	}
	for _, c := range []struct {
		state State
		by    int
	}{{h.state, -1}, {r.State, 1}} {
		switch c.state {
		case Complete:
			b.whole += c.by
		case Partial:
			x.partial += c.by
			n.partial += c.by
		}
	}
	h.state, h.have, h.heard = r.State, r.Have, now
}

func (b *blob) end(l *lease) {
	l.holder.leases--
	b.leased--
	*l = lease{}
}

// expire ends the leases of nodes that are silent or take too long.
func (b *blob) expire(now time.Time) {
	if b.leased == 0 {
		return
	}
	for p := range b.leases {
		if l := &b.leases[p]; l.holder != nil && (now.Sub(l.since) > leaseTime || now.Sub(l.holder.heard) > silence) {
			b.end(l)
		}
	}
}

// release ends all leases of a node.
func (b *blob) release(h *holder) {
	for p := range b.leases {
		if l := &b.leases[p]; l.holder == h {
			b.end(l)
		}
	}
}

// assign gives a node leases of pieces that nobody has. They are spread over all nodes that fetch the blob, so that
// these have something to exchange.
func (b *blob) assign(h *holder, now time.Time) {
	quota := min(leasesPerNode, (b.pieces-1)/len(b.holders)+1)
	for p := 0; p < b.pieces && h.leases < quota && b.leased < leasesPerBlob; p++ {
		if b.held[p] == 0 && b.leases[p].holder == nil {
			b.leases[p] = lease{h, now}
			h.leases++
			b.leased++
		}
	}
}

func (b *blob) leaseOf(h *holder) swarm.Set {
	if h.leases == 0 {
		return nil
	}
	s := swarm.NewSet(b.pieces)
	for p := range b.leases {
		if b.leases[p].holder == h {
			s.Add(p)
		}
	}
	return s
}

// sample returns nodes that have pieces which another one lacks, from a random position on, so that they share the
// load.
func (b *blob) sample(h *holder, random func(int) int) (out []Holder) {
	n := len(b.holders)
	if n == 0 {
		return nil
	}
	start := random(n)
	for i := range n {
		o := b.holders[(start+i)%n]
		if o == h || o.state == Partial && o.have.Without(h.have) == 0 {
			continue
		}
		if out = append(out, Holder{o.node, o.state == Complete, o.have}); len(out) == MaxHolders {
			break
		}
	}
	return out
}
