// SPDX-License-Identifier: Apache-2.0

package swarm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var t0 = time.Unix(1_800_000_000, 0)

func set(n int, pieces ...int) Set {
	s := NewSet(n)
	for _, p := range pieces {
		s.Add(p)
	}
	return s
}

func first(int) int { return 0 }

func TestPiecesCoverABlobOnce(t *testing.T) {
	for _, size := range []uint64{0, 1, minPiece - 1, minPiece, minPiece + 1, 600e6, 4 << 30, 4<<30 + 1, 1 << 40} {
		n, at := Pieces(size), uint64(0)
		if n < 1 || n > MaxPieces {
			t.Fatalf("%d bytes: %d pieces", size, n)
		}
		for i := range n {
			offset, length := Bounds(size, i)
			if offset != at || length == 0 && size > 0 {
				t.Fatalf("%d bytes: piece %d has %d bytes at %d, want it at %d", size, i, length, offset, at)
			}
			at += length
		}
		if at != size {
			t.Errorf("%d bytes: pieces end at %d", size, at)
		}
	}
}

func TestTheRarestPieceIsFetchedFirst(t *testing.T) {
	s := State{Blobs: []Blob{{Pieces: 3, Answered: t0, Offers: []Offer{
		{Peer: "a", Have: FullSet(3)}, {Peer: "b", Have: set(3, 0, 2)}, {Peer: "c", Have: set(3, 2)},
	}}}}
	l := DefaultLimits()
	l.Peers = 2
	got := Next(s, l, t0, first)
	want := []Request{{0, 1, "a"}, {0, 0, "b"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTheRegistryIsAskedForLeasesAndForWhatNobodyElseCanSend(t *testing.T) {
	l := DefaultLimits()
	offers := []Offer{{Peer: "a", Have: set(5, 1)}, {Peer: "dead", Have: set(5, 2), Unusable: true}}
	for _, c := range []struct {
		name  string
		later time.Duration // since the index answered
		down  bool
		want  []Request
	}{
		{"lease, and a piece of a peer that failed", l.Silence, false, []Request{{0, 1, "a"}, {0, 0, ""}, {0, 2, ""}}},
		{"the index is silent", l.Silence + 2*time.Second, false,
			[]Request{{0, 1, "a"}, {0, 0, ""}, {0, 2, ""}, {0, 3, ""}}},
		{"the registry has failed", time.Hour, true, []Request{{0, 1, "a"}}},
	} {
		b := Blob{
			Pieces: 5, Have: set(5, 4), Lease: set(5, 0), Offers: offers, Answered: t0.Add(-c.later), Pause: time.Second,
			NoRegistry: c.down,
		}
		got := Next(State{Blobs: []Blob{b}}, l, t0, first)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestABusyPeerIsWaitedFor(t *testing.T) {
	b := Blob{Pieces: 1, Answered: t0.Add(-time.Hour), Offers: []Offer{{Peer: "a", Have: FullSet(1), Busy: true}}}
	if got := Next(State{Blobs: []Blob{b}}, DefaultLimits(), t0, first); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}

func TestAPeerIsNotAskedForAPieceThatItIsBarredFrom(t *testing.T) {
	b := Blob{Pieces: 2, Answered: t0, Offers: []Offer{{Peer: "liar", Have: FullSet(2)}},
		Barred: func(_ string, piece int) bool { return piece == 1 }}
	got := Next(State{Blobs: []Blob{b}}, DefaultLimits(), t0, first)
	if want := []Request{{0, 0, "liar"}, {0, 1, ""}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// FuzzNext checks what holds for every state: limits are kept, and no piece is asked for that is there, is coming, or
// that its source does not have.
func FuzzNext(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		subset := func(n int) Set {
			s := NewSet(n)
			for i := range n {
				if r.IntN(3) == 0 {
					s.Add(i)
				}
			}
			return s
		}
		s := State{Registry: r.IntN(6), Peers: map[string]int{}}
		for range r.IntN(4) {
			n := 1 + r.IntN(40)
			b := Blob{
				Pieces: n, Have: subset(n), Busy: subset(n), Lease: subset(n),
				Answered:   t0.Add(-time.Duration(r.IntN(3)) * time.Second),
				NoRegistry: r.IntN(4) == 0,
			}
			for p := range r.IntN(5) {
				b.Offers = append(b.Offers, Offer{fmt.Sprint(p), subset(n), r.IntN(5) == 0, r.IntN(5) == 0})
				s.Peers[fmt.Sprint(p)] = r.IntN(3)
			}
			s.Blobs = append(s.Blobs, b)
		}
		l := DefaultLimits()
		registry, total, perPeer := s.Registry, 0, map[string]int{}
		for p, n := range s.Peers {
			perPeer[p] = n
			total += n
		}
		seen := map[Request]bool{}
		for _, q := range Next(s, l, t0, r.IntN) {
			b := s.Blobs[q.Blob]
			if b.Have.Has(q.Piece) || b.Busy.Has(q.Piece) || q.Piece >= b.Pieces {
				t.Fatalf("%+v of %+v", q, b)
			}
			if key := (Request{Blob: q.Blob, Piece: q.Piece}); seen[key] {
				t.Fatalf("%+v twice", q)
			} else {
				seen[key] = true
			}
			if q.Peer == "" {
				if registry++; registry > l.Registry || b.NoRegistry {
					t.Fatalf("%+v: %d requests to the registry", q, registry)
				}
				continue
			}
			total++
			perPeer[q.Peer]++
			has := slices.ContainsFunc(b.Offers, func(o Offer) bool {
				return o.Peer == q.Peer && o.Have.Has(q.Piece) && !o.Unusable && !o.Busy
			})
			if !has || total > l.Peers || perPeer[q.Peer] > l.PerPeer {
				t.Fatalf("%+v: has it: %v, %d requests to peers, %v", q, has, total, perPeer)
			}
		}
	})
}
