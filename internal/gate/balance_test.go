// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// shares counts the places of each name.
func shares(table []int, names int) []int {
	out := make([]int, names)
	for _, i := range table {
		out[i]++
	}
	return out
}

// Every name has its share of the places, whatever the order of names.
func TestMaglevShares(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := 1; n <= 32; n++ {
		names := make([]uint64, n)
		for i := range names {
			names[i] = r.Uint64()
			if n%2 == 0 {
				names[i] = uint64(i) // small numbers are names, too
			}
		}
		table := maglevTable(names, int(gateLimitMAGLEV_SIZE))
		for i, s := range shares(table, n) {
			if s < int(gateLimitMAGLEV_SIZE)/n-1 || s > int(gateLimitMAGLEV_SIZE)/n+1 {
				t.Errorf("%d names: name %d has %d of %d places", n, i, s, int(gateLimitMAGLEV_SIZE))
			}
		}
		other := append([]uint64(nil), names...)
		r.Shuffle(n, func(i, j int) { other[i], other[j] = other[j], other[i] })
		for at, i := range maglevTable(other, int(gateLimitMAGLEV_SIZE)) {
			if other[i] != names[table[at]] {
				t.Fatalf("%d names: place %d depends on the order", n, at)
			}
		}
	}
	if maglevTable(nil, int(gateLimitMAGLEV_SIZE)) != nil {
		t.Error("a table of nobody")
	}
}

// When a name goes, its places go to others, and few others change.
func TestMaglevDisruption(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := 2; n <= 32; n++ {
		names := make([]uint64, n)
		for i := range names {
			names[i] = r.Uint64()
		}
		before := maglevTable(names, int(gateLimitMAGLEV_SIZE))
		after := maglevTable(names[:n-1], int(gateLimitMAGLEV_SIZE))
		moved := 0
		for at := range before {
			if before[at] != n-1 && before[at] != after[at] {
				moved++
			}
		}
		// The paper's figure 12: some percent more than what must move.
		if moved > int(gateLimitMAGLEV_SIZE)*15/100 {
			t.Errorf("%d names, one goes: %d of %d places of others moved", n, moved, int(gateLimitMAGLEV_SIZE))
		}
	}
}

// With affinity, a client's address keeps its pod whatever its port, clients spread over pods, and a pod that goes takes
// only its own clients along.
func TestAffinity(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1, 2, 3)
	_, err := w.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Affinity: true, Retries: 3})
	w.must(err)
	port := uint16(1000)
	where := func(host byte) int {
		t.Helper()
		port++
		return podOf(t, w.wantRun(onNIC, w.syn(1).fromOther(host, port).frame(), tcxRedirect))
	}
	before := map[byte]int{}
	spread := [4]int{}
	for h := range byte(100) {
		before[h] = where(h)
		spread[before[h]]++
		if again := where(h); again != before[h] {
			t.Errorf("client %d went to pod %d and %d", h, before[h], again)
		}
	}
	if spread[1] < 15 || spread[2] < 15 || spread[3] < 15 {
		t.Errorf("100 clients over 3 pods: %v", spread[1:])
	}
	w.must(w.g.Drain(vip, 2))
	moved := 0
	for h, was := range before {
		switch now := where(h); {
		case now == 2:
			t.Fatalf("client %d went to the pod that is drained", h)
		case was != 2 && now != was:
			moved++
		}
	}
	if moved > 15 {
		t.Errorf("%d of %d clients of other pods moved", moved, 100-spread[2])
	}
	w.serve(vip, 2)
	for h, was := range before {
		if now := where(h); now != was {
			t.Fatalf("client %d: pod %d before, %d now", h, was, now)
		}
	}
	// A client whose pod refuses goes elsewhere, for this once.
	s := w.syn(1000)
	pod := podOf(t, w.wantRun(onNIC, s.frame(), tcxRedirect))
	if to := podOf(t, w.wantRun(onPod1+program(pod-1), w.refusal(pod), tcxRedirect)); to == pod {
		t.Error("it went to the same pod")
	}
	// Without affinity, the fewest flows count again.
	w.service(vip, 100, 100)
	var n gateMaglevTable
	i, _ := w.g.services.index(vip)
	if err := w.g.objs.MaglevTables.Lookup(i, &n); err == nil {
		t.Error("the table is still there")
	}
}

// The pod with the fewest flows in all gets the next, counting those that it has by other edge nodes; pods on this node
// come first if the service wants it.
func TestLeastAcrossNodes(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.warm(vip, 1)
	for i := 2; i <= 3; i++ {
		w.addRemote(i)
		w.serve(vip, i)
	}
	next := func(n uint16) int {
		t.Helper()
		out := w.wantRun(onNIC, w.syn(1).fromOther(1, n).frame(), tcxRedirect)
		if encapsulated(out) {
			return int(out[53])
		}
		return podOf(t, out)
	}
	w.must(w.g.SetElsewhere(vip, 2, 10))
	w.must(w.g.SetElsewhere(vip, 3, 4))
	w.must(w.g.SetElsewhere(vip, 1, 99)) // it is here: all its flows are known
	var got [4]int
	for i := range uint16(18) {
		got[next(i)]++
	}
	// 10 + 4 + 18 flows over three pods.
	if fmt.Sprint(got[1:]) != "[10 1 7]" && fmt.Sprint(got[1:]) != "[11 0 7]" && fmt.Sprint(got[1:]) != "[11 1 6]" {
		t.Errorf("new flows: %v", got[1:])
	}
	_, err := w.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, PreferLocal: true})
	w.must(err)
	for i := range uint16(20) {
		if p := next(100 + i); p != 1 {
			t.Fatalf("went to pod %d", p)
		}
	}
	w.must(w.g.Drain(vip, 1))
	if p := next(200); p == 1 {
		t.Error("went to a pod that is drained")
	}
	if err := w.g.SetElsewhere(netip.MustParseAddrPort("10.46.100.77:1"), 9, 1); err == nil {
		t.Error("an unknown pod is told of")
	}
}
