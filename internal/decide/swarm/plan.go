// SPDX-License-Identifier: Apache-2.0

package swarm

import (
	"cmp"
	"slices"
	"time"
)

const (
	// MaxServed is the number of requests that a node serves concurrently. It is small, so that pieces are soon on
	// more nodes, which serve them in turn.
	MaxServed = 8
	// BusyPause is how long a peer that serves that many is not asked.
	BusyPause = 200 * time.Millisecond
)

// Limits bound the requests of a node that are in progress.
type Limits struct {
	// Registry and Peers bound the requests to the registry and to all peers together, PerPeer those to one peer.
	Registry, Peers, PerPeer int
	// Silence is how long the index may be silent, beyond two pauses between reports, before the node fetches pieces
	// without a known peer from the registry. As long as the index answers, it alone decides who does that: many
	// nodes that become impatient at once would slow the registry down for all of them.
	Silence time.Duration
}

// DefaultLimits are the limits of a node.
func DefaultLimits() Limits {
	return Limits{Registry: 4, Peers: 8, PerPeer: 2, Silence: 3 * time.Second}
}

// Silent reports whether the index has been silent about a blob for too long: since it last answered, with a pause
// before the next report.
func (l Limits) Silent(answered time.Time, pause time.Duration, now time.Time) bool {
	return now.Sub(answered) >= l.Silence+2*pause
}

// Offer are the pieces that a peer has.
type Offer struct {
	Peer string
	Have Set
	// Unusable is set if the peer has failed or sent wrong bytes, and is not a source for now. Busy is set if it is a
	// source, but serves too many others to be asked now.
	Unusable, Busy bool
}

// Blob is a blob that is being fetched.
type Blob struct {
	Pieces int
	// Have are the present pieces, Busy those being fetched, and Lease those that the index lets this node fetch from
	// the registry.
	Have, Busy, Lease Set
	Offers            []Offer
	// NoRegistry is set if the registry is not asked for now because it has failed.
	NoRegistry bool
	// Barred reports that a peer must not be asked for a piece. Optional.
	Barred func(peer string, piece int) bool
	// Answered is when the index last answered, or when the blob was begun, and Pause is the pause before the next
	// report.
	Answered time.Time
	Pause    time.Duration
}

// State is what a node knows.
type State struct {
	// Blobs are in the order in which they are needed.
	Blobs []Blob
	// Registry is the number of requests to the registry in progress, and Peers those to each peer.
	Registry int
	Peers    map[string]int
}

// Request is a piece to fetch: from a peer, or from the registry if Peer is empty.
type Request struct {
	Blob, Piece int // Blob is the index in State.Blobs
	Peer        string
}

// Next returns the requests that a node begins now. random returns a number in [0, n).
func Next(s State, l Limits, now time.Time, random func(n int) int) []Request {
	var out []Request
	registry, total := s.Registry, 0
	busy := make(map[string]int, len(s.Peers))
	for peer, n := range s.Peers {
		busy[peer] = n
		total += n
	}
	for i := range s.Blobs {
		b := &s.Blobs[i]
		for _, c := range b.candidates(random) {
			peer := ""
			if total < l.Peers {
				peer = leastBusy(c.peers, busy, l.PerPeer)
			}
			switch {
			case peer != "":
				busy[peer]++
				total++
			case registry < l.Registry && !b.NoRegistry && b.fromRegistry(c, l, now):
				registry++
			default:
				continue
			}
			out = append(out, Request{Blob: i, Piece: c.piece, Peer: peer})
		}
	}
	return out
}

// candidate is a piece that is missing.
type candidate struct {
	piece   int
	peers   []string // peers that have it and can be asked now
	offered bool     // some peer has it, possibly one that is not a source
	live    bool     // a peer that is a source has it
	tie     int
}

// candidates returns the missing pieces, the rarest first, and those without a known peer last.
func (b *Blob) candidates(random func(int) int) []candidate {
	var out []candidate
	for p := range b.Pieces {
		if b.Have.Has(p) || b.Busy.Has(p) {
			continue
		}
		c := candidate{piece: p, tie: random(1 << 30)}
		for i := range b.Offers {
			o := &b.Offers[i]
			if !o.Have.Has(p) {
				continue
			}
			c.offered = true
			if o.Unusable || b.Barred != nil && b.Barred(o.Peer, p) {
				continue
			}
			c.live = true
			if !o.Busy {
				c.peers = append(c.peers, o.Peer)
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(x, y candidate) int {
		if (len(x.peers) == 0) != (len(y.peers) == 0) {
			return cmp.Compare(len(y.peers), len(x.peers))
		}
		return cmp.Or(cmp.Compare(len(x.peers), len(y.peers)), cmp.Compare(x.tie, y.tie))
	})
	return out
}

// fromRegistry reports whether this node may fetch a piece from the registry: if it has the lease, if the peers that
// have it are not a source, or if the index is silent about it.
func (b *Blob) fromRegistry(c candidate, l Limits, now time.Time) bool {
	switch {
	case b.Lease.Has(c.piece):
		return true
	case c.live:
		return false
	}
	return c.offered || l.Silent(b.Answered, b.Pause, now)
}

// Sourced reports whether a peer that is a source has a missing piece, even if it cannot be asked right now.
func (b *Blob) Sourced() bool {
	for i := range b.Offers {
		o := &b.Offers[i]
		for p := range b.Pieces {
			if !o.Unusable && o.Have.Has(p) && !b.Have.Has(p) && (b.Barred == nil || !b.Barred(o.Peer, p)) {
				return true
			}
		}
	}
	return false
}

// leastBusy returns the peer with the fewest requests in progress, less than limit; empty if there is none.
func leastBusy(peers []string, busy map[string]int, limit int) (best string) {
	for _, p := range peers {
		if busy[p] < limit && (best == "" || busy[p] < busy[best]) {
			best = p
		}
	}
	return best
}
