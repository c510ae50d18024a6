// SPDX-License-Identifier: Apache-2.0

package blobindex

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/swarm"
)

var t0 = time.Unix(1_800_000_000, 0)

const size = 40 << 20 // ten pieces

var key = Key{Repository: "registry.example/model", Digest: [32]byte{1}}

func partial(pieces ...int) Report {
	s := swarm.NewSet(10)
	for _, p := range pieces {
		s.Add(p)
	}
	return Report{Key: key, Size: size, State: Partial, Have: s}
}

func first(int) int { return 0 }

// ask reports and wants an answer.
func ask(t *testing.T, x *Index, node string, r Report, now time.Time) Answer {
	t.Helper()
	a, ok := x.Report(node, r, now, first)
	if !ok {
		t.Fatalf("%s: %+v is not answered", node, r)
	}
	return a
}

func TestEachPieceIsLeasedOnce(t *testing.T) {
	var x Index
	leased := swarm.NewSet(10)
	for _, node := range []string{"a", "b", "c"} {
		a := ask(t, &x, node, partial(), t0)
		if a.Lease.Without(leased) != a.Lease.Len() {
			t.Errorf("%s: %v overlaps with %v", node, a.Lease, leased)
		}
		for p := range 10 {
			if a.Lease.Has(p) {
				leased.Add(p)
			}
		}
	}
	if leased.Len() != 10 {
		t.Errorf("%d of 10 pieces are leased", leased.Len())
	}
	// What a node has got is not leased again, and others hear of it.
	a := ask(t, &x, "a", partial(0, 1), t0)
	if a.Lease.Has(0) || !a.Lease.Has(2) {
		t.Errorf("lease of a: %v", a.Lease)
	}
	b := ask(t, &x, "b", partial(4), t0)
	if len(b.Holders) != 1 || b.Holders[0].Node != "a" || b.Holders[0].Have.Len() != 2 || b.Lease.Has(0) {
		t.Errorf("b hears of %+v", b)
	}
}

func TestLeasesEndWithTheirNodes(t *testing.T) {
	for name, end := range map[string]func(x *Index, now time.Time) time.Time{
		"gone":   func(x *Index, now time.Time) time.Time { x.Forget("a"); return now },
		"silent": func(_ *Index, now time.Time) time.Time { return now.Add(silence + 1) },
		"no registry": func(x *Index, now time.Time) time.Time {
			r := partial()
			r.NoRegistry = true
			x.Report("a", r, now, first)
			return now
		},
		"slow": func(x *Index, now time.Time) time.Time {
			for end := now.Add(leaseTime); now.Before(end); now = now.Add(time.Second) {
				x.Report("a", partial(), now, first)
			}
			return now.Add(1)
		},
		"done": func(x *Index, now time.Time) time.Time {
			r := partial()
			r.State, r.Have = Complete, nil
			x.Report("a", r, now, first)
			x.Forget("a")
			return now
		},
	} {
		var x Index
		ask(t, &x, "a", partial(), t0)
		if a := ask(t, &x, "b", partial(), end(&x, t0)); !a.Lease.Has(0) {
			t.Errorf("%s: piece 0 is leased to nobody: %+v", name, a)
		}
	}
}

func TestWhatACompleteNodeHasIsNotLeased(t *testing.T) {
	var x Index
	x.Report("a", Report{Key: key, Size: size, State: Complete}, t0, first)
	a := ask(t, &x, "b", partial(), t0)
	if a.Lease.Len() != 0 || len(a.Holders) != 1 || !a.Holders[0].Complete {
		t.Errorf("answer %+v", a)
	}
	other := key
	other.Repository = "registry.example/other"
	r := partial()
	r.Key = other
	if a := ask(t, &x, "b", r, t0); len(a.Holders) != 0 || a.Lease.Len() == 0 {
		t.Errorf("another repository with the same blob: %+v", a)
	}
}

func TestANodeAsksForTheSizeOfABlob(t *testing.T) {
	var x Index
	question := Report{Key: key, State: Partial}
	if a := ask(t, &x, "b", question, t0); a.Size != 0 || len(a.Holders) != 0 || len(x.blobs) != 0 {
		t.Errorf("of what nobody has: %+v, %d blobs", a, len(x.blobs))
	}
	x.Report("a", Report{Key: key, Size: size, State: Complete}, t0, first)
	if a := ask(t, &x, "b", question, t0); a.Size != size || len(a.Holders) != 1 || x.nodes["b"] != nil {
		t.Errorf("answer %+v", a)
	}
}

func TestReportsThatCannotBeTrueAreIgnored(t *testing.T) {
	var x Index
	ask(t, &x, "a", partial(1), t0)
	longer := partial()
	longer.Size++
	if _, ok := x.Report("b", longer, t0, first); ok {
		t.Error("another size is answered")
	}
	beyond := partial()
	beyond.Have = swarm.FullSet(16)
	if _, ok := x.Report("b", beyond, t0, first); ok {
		t.Error("pieces beyond the end are answered")
	}
	if len(x.blobs) != 1 || x.nodes["b"] != nil {
		t.Error("they left something")
	}
	x.Forget("a")
	if len(x.blobs) != 0 || x.partial != 0 {
		t.Errorf("%d blobs, %d partial are left", len(x.blobs), x.partial)
	}
}

func TestANodeFetchesSoManyBlobsAtATime(t *testing.T) {
	var x Index
	for n := range maxPartial + 1 {
		r := partial()
		r.Digest[1] = byte(n)
		if _, ok := x.Report("a", r, t0, first); ok != (n < maxPartial) {
			t.Errorf("blob %d is answered: %v", n, ok)
		}
	}
	done := partial()
	done.State, done.Have = Complete, nil
	x.Report("a", done, t0, first)
	r := partial()
	r.Digest[1] = maxPartial
	ask(t, &x, "a", r, t0)
}

func TestReportsBecomeRarerWithTheirNumber(t *testing.T) {
	var x Index
	var last time.Duration
	for n := range 4000 {
		last = ask(t, &x, fmt.Sprint(n), partial(), t0).Pause
		if n == 0 && last != minPause {
			t.Errorf("one node: %v", last)
		}
	}
	if last != 4000*perReport {
		t.Errorf("4,000 nodes: %v", last)
	}
}

// FuzzIndex compares the counts of an index with its content after random reports.
func FuzzIndex(f *testing.F) {
	for seed := range uint64(10) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 2))
		var x Index
		now := t0
		for range 300 {
			now = now.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
			node := fmt.Sprint(r.IntN(6))
			if r.IntN(20) == 0 {
				x.Forget(node)
			}
			report := partial(r.IntN(10), r.IntN(10))
			report.Digest[0] = byte(r.IntN(3))
			report.State = State(1 + r.IntN(3))
			report.NoRegistry = r.IntN(8) == 0
			a, ok := x.Report(node, report, now, r.IntN)
			if ok != (report.State == Partial) || a.Lease.Without(report.Have) != a.Lease.Len() ||
				a.Lease.Len() > leasesPerNode || report.NoRegistry && a.Lease.Len() > 0 {
				t.Fatalf("%+v: %+v", report, a)
			}
			checkCounts(t, &x)
		}
		for n := range 6 {
			x.Forget(fmt.Sprint(n))
		}
		if len(x.blobs) != 0 || x.partial != 0 || len(x.nodes) != 0 {
			t.Fatalf("left: %+v", x)
		}
	})
}

func checkCounts(t *testing.T, x *Index) {
	t.Helper()
	fetching := 0
	for k, b := range x.blobs {
		whole, leased := 0, 0
		held := make([]uint16, b.pieces)
		for i, h := range b.holders {
			if h.at != i || b.byNode[h.node] != h || !x.nodes[h.node].blobs[k] {
				t.Fatalf("%v: holder %d is %+v", k, i, h)
			}
			own := 0
			for p := range b.pieces {
				if h.state == Partial && h.have.Has(p) {
					held[p]++
				}
				if b.leases != nil && b.leases[p].holder == h {
					own++
				}
			}
			if own != h.leases || own > 0 && h.state != Partial {
				t.Fatalf("%v: %s has %d leases, counted %d", k, h.node, own, h.leases)
			}
			leased += own
			if h.state == Complete {
				whole++
			} else {
				fetching++
			}
		}
		if whole != b.whole || leased != b.leased || b.held != nil && !slices.Equal(held, b.held) || len(b.holders) == 0 {
			t.Fatalf("%v: whole %d, leased %d, held %v: %+v", k, whole, leased, held, b)
		}
	}
	if fetching != x.partial {
		t.Fatalf("%d are fetching, counted %d", fetching, x.partial)
	}
}
