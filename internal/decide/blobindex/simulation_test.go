// SPDX-License-Identifier: Apache-2.0

package blobindex

import (
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/swarm"
)

// largeSimulation also simulates 1,000 nodes: the table in docs/adr/0027 comes from
// go test ./internal/decide/blobindex -run Simulation -large -v
var largeSimulation = flag.Bool("large", false, "also simulate 1,000 nodes")

// simulation is a number of nodes that pull an image at once. It runs the index and the plan of the nodes; what it adds
// is links, on which transfers share the bandwidth evenly, and the delay of messages.
type simulation struct {
	index    Index
	random   *rand.Rand
	nodes    []*simNode
	registry simLink
	now      time.Time
	steps    int
	// What is measured: bytes from the registry, messages to and from the index and their bytes.
	origin                  float64
	messages, data, refused int
}

// simLink is a link with a bandwidth in bytes per second.
type simLink struct {
	rate   float64
	active int
}

// simNode is a node.
type simNode struct {
	name      string
	up, down  simLink
	blobs     []*simBlob
	transfers []*simTransfer
	requests  int // to the registry
	busy      map[string]int
	avoid     map[string]time.Time
	look      bool      // something has changed for it
	done      time.Time // zero until it has all
	dead      bool
}

type simBlob struct {
	key        Key
	size       uint64
	pieces     int
	have, busy swarm.Set
	answer     Answer
	answered   time.Time
	due        time.Time
	dirty      bool
	told       bool // that it is complete
}

type simTransfer struct {
	blob  *simBlob
	piece int
	from  *simNode // nil: the registry
	left  float64
}

const (
	simStep   = 10 * time.Millisecond
	simActive = 4
	simTick   = 10 // steps after which a node looks at its downloads when nothing happens
	// simAnswer and simReport are bytes of a HOLDERS and a BLOBS without holders and sets.
	simReport = 120
	simAnswer = 130
	simHolder = 85
)

// newSimulation returns nodes that have nothing of an image of layers of layer bytes. Rates are in bytes per second.
func newSimulation(nodes, layers int, layer uint64, registry, link float64, seed uint64) *simulation {
	s := &simulation{random: rand.New(rand.NewPCG(seed, 3)), now: t0, registry: simLink{rate: registry}}
	for i := range nodes {
		n := &simNode{name: strconv.Itoa(i), up: simLink{rate: link}, down: simLink{rate: link}, busy: map[string]int{},
			avoid: map[string]time.Time{}}
		for l := range layers {
			p := swarm.Pieces(layer)
			n.blobs = append(n.blobs, &simBlob{
				key: Key{Repository: "r", Digest: [32]byte{byte(l)}}, size: layer, pieces: p, have: swarm.NewSet(p),
				busy: swarm.NewSet(p),
				due:  t0.Add(time.Duration(s.random.IntN(50)) * time.Millisecond), // they do not begin at the same moment
			})
		}
		s.nodes = append(s.nodes, n)
	}
	return s
}

// active returns the blobs that a node fetches now.
func (n *simNode) active() (out []*simBlob) {
	for _, b := range n.blobs {
		if b.have.Len() < b.pieces && len(out) < simActive {
			out = append(out, b)
		}
	}
	return out
}

// step reports, begins transfers, and lets time pass.
func (s *simulation) step() {
	s.steps++
	for i, n := range s.nodes {
		if n.done.IsZero() && !n.dead {
			active := n.active()
			s.report(n, active)
			if n.look || (s.steps+i)%simTick == 0 {
				n.look = false
				s.begin(n, active)
			}
		}
	}
	s.now = s.now.Add(simStep)
	for _, n := range s.nodes {
		s.transfer(n)
	}
}

// report tells the index of blobs whose time has come, as Mirror.reports does.
func (s *simulation) report(n *simNode, active []*simBlob) {
	for _, b := range active {
		if b.answered.IsZero() {
			b.answered = s.now
		}
		free := b.pieces - b.have.Len() - b.busy.Len()
		due := b.due
		if b.dirty && (free == 0 || !b.canBegin()) {
			due = due.Add(-b.answer.Pause * 3 / 4)
		}
		if s.now.Before(due) {
			continue
		}
		r := Report{Key: b.key, Size: b.size, State: Partial, Have: append(swarm.Set(nil), b.have...)}
		b.answer, _ = s.index.Report(n.name, r, s.now, s.random.IntN)
		n.look, b.answered, b.dirty, b.due = true, s.now, false, s.now.Add(b.answer.Pause)
		s.messages += 2
		s.data += simReport + simAnswer + 2*len(r.Have) + simHolder*len(b.answer.Holders)
		for _, h := range b.answer.Holders {
			s.data += len(h.Have)
		}
	}
}

func (b *simBlob) canBegin() bool {
	for p := range b.pieces {
		if b.have.Has(p) || b.busy.Has(p) {
			continue
		}
		if b.answer.Lease.Has(p) {
			return true
		}
		for _, h := range b.answer.Holders {
			if h.Complete || h.Have.Has(p) {
				return true
			}
		}
	}
	return false
}

// begin begins the transfers that the plan says.
func (s *simulation) begin(n *simNode, active []*simBlob) {
	state := swarm.State{Registry: n.requests, Peers: n.busy}
	for _, b := range active {
		o := swarm.Blob{
			Pieces: b.pieces, Have: b.have, Busy: b.busy, Lease: b.answer.Lease, Answered: b.answered,
			Pause: b.answer.Pause,
		}
		for _, h := range b.answer.Holders {
			have := h.Have
			if h.Complete {
				have = swarm.FullSet(b.pieces)
			}
			i, _ := strconv.Atoi(h.Node)
			o.Offers = append(o.Offers, swarm.Offer{Peer: h.Node, Have: have, Unusable: s.nodes[i].dead,
				Busy: s.now.Before(n.avoid[h.Node])})
		}
		state.Blobs = append(state.Blobs, o)
	}
	for _, r := range swarm.Next(state, swarm.DefaultLimits(), s.now, s.random.IntN) {
		b := active[r.Blob]
		_, length := swarm.Bounds(b.size, r.Piece)
		b.busy.Add(r.Piece)
		x := &simTransfer{blob: b, piece: r.Piece, left: float64(length)}
		if r.Peer == "" {
			n.requests++
			s.registry.active++
		} else {
			i, _ := strconv.Atoi(r.Peer)
			x.from = s.nodes[i]
			if x.from.up.active >= swarm.MaxServed {
				n.avoid[r.Peer] = s.now.Add(swarm.BusyPause)
				b.busy.Remove(r.Piece)
				s.refused++
				continue
			}
			x.from.up.active++
			n.busy[r.Peer]++
		}
		n.down.active++
		n.transfers = append(n.transfers, x)
	}
}

// transfer moves bytes for the time of a step.
func (s *simulation) transfer(n *simNode) {
	kept := n.transfers[:0]
	for _, x := range n.transfers {
		from := &s.registry
		if x.from != nil {
			from = &x.from.up
		}
		moved := min(from.rate/float64(from.active), n.down.rate/float64(n.down.active)) * simStep.Seconds()
		broken := n.dead || x.from != nil && x.from.dead
		if !broken {
			moved = min(moved, x.left)
			if x.from == nil {
				s.origin += moved
			}
			if x.left -= moved; x.left > 0 {
				kept = append(kept, x)
				continue
			}
			x.blob.have.Add(x.piece)
			x.blob.dirty = true
		}
		n.look = true
		x.blob.busy.Remove(x.piece)
		from.active--
		n.down.active--
		if x.from == nil {
			n.requests--
		} else {
			if n.busy[x.from.name]--; n.busy[x.from.name] == 0 {
				delete(n.busy, x.from.name)
			}
		}
		if b := x.blob; b.have.Len() == b.pieces && !b.told && !n.dead {
			b.told = true
			s.index.Report(n.name, Report{Key: b.key, Size: b.size, State: Complete}, s.now, s.random.IntN)
			s.messages++
			s.data += simReport
		}
	}
	n.transfers = kept
	if n.done.IsZero() && len(n.active()) == 0 {
		n.done = s.now
	}
}

// run runs until all nodes that live are done, and returns when the last one was.
func (s *simulation) run(t *testing.T, within time.Duration) time.Duration {
	t.Helper()
	for s.now.Sub(t0) < within {
		s.step()
		left := 0
		for _, n := range s.nodes {
			if n.done.IsZero() && !n.dead {
				left++
			}
		}
		if left == 0 {
			return s.now.Sub(t0)
		}
	}
	t.Fatalf("nodes are not done after %v", within)
	return 0
}

// The last node is done soon after the registry could have sent the image once, whatever the number of nodes, and the
// registry sends little more than that.
func TestSimulationOfManyNodes(t *testing.T) {
	const layers, layer = 10, 60_000_000
	image := float64(layers * layer)
	for _, c := range []struct {
		nodes          int
		registry, link float64 // bytes per second
		slower         float64 // than the lower bound
	}{
		{3, 25e6, 125e6, 1.3}, {30, 25e6, 125e6, 1.3}, {100, 25e6, 125e6, 1.3}, {1000, 25e6, 125e6, 1.5},
		{1000, 1250e6, 125e6, 4},
	} {
		if c.nodes > 30 && !*largeSimulation {
			continue
		}
		s := newSimulation(c.nodes, layers, layer, c.registry, c.link, 1)
		// Each byte leaves the registry at least once, and enters each node.
		bound := time.Duration(max(image/c.registry, image/c.link) * float64(time.Second))
		last := s.run(t, 20*bound)
		t.Logf("%5d nodes, registry %.1f Gbit/s: %.3f of the image from the registry; last node after %.1f s "+
			"(bound %.1f s, without peers %.1f s); index: %.1f messages and %.1f kB per node, %.0f messages/s", c.nodes,
			c.registry*8/1e9, s.origin/image, last.Seconds(), bound.Seconds(),
			max(image*float64(c.nodes)/c.registry, image/c.link),
			float64(s.messages)/float64(c.nodes), float64(s.data)/1000/float64(c.nodes), float64(s.messages)/last.Seconds())
		if s.origin > 1.1*image {
			t.Errorf("%d nodes: the registry sent %.2f times the image", c.nodes, s.origin/image)
		}
		if last.Seconds() > c.slower*bound.Seconds() {
			t.Errorf("%d nodes: the last one was done after %v, at best %v", c.nodes, last, bound)
		}
	}
}

// A third of the nodes die in the middle of it, with what they have: the others are done all the same.
func TestSimulationOfNodesThatDie(t *testing.T) {
	s := newSimulation(30, 4, 60_000_000, 25e6, 125e6, 2)
	for s.now.Sub(t0) < 4*time.Second {
		s.step()
	}
	for _, n := range s.nodes[:10] {
		n.dead = true
		s.index.Forget(n.name)
	}
	last := s.run(t, time.Minute)
	t.Logf("done after %v, %.3f of the image from the registry", last, s.origin/240e6)
	if s.origin > 1.5*240e6 {
		t.Errorf("the registry sent %.2f times the image", s.origin/240e6)
	}
}
