// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// shares counts the entries of each name.
func shares(table []int, names int) []int {
	out := make([]int, names)
	for _, i := range table {
		out[i]++
	}
	return out
}

// Every name gets an equal share of the table, whatever the order of the names.
func TestMaglevSharesAreEqual(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := 1; n <= 32; n++ {
		names := make([]uint64, n)
		for i := range names {
			names[i] = r.Uint64()
			if n%2 == 0 {
				names[i] = uint64(i) // small numbers are valid names, too
			}
		}
		table := maglevTable(names, int(gateLimitMAGLEV_SIZE))
		for i, s := range shares(table, n) {
			if s < int(gateLimitMAGLEV_SIZE)/n-1 || s > int(gateLimitMAGLEV_SIZE)/n+1 {
				t.Errorf("%d names: name %d has %d of %d entries", n, i, s, int(gateLimitMAGLEV_SIZE))
			}
		}
		other := append([]uint64(nil), names...)
		r.Shuffle(n, func(i, j int) { other[i], other[j] = other[j], other[i] })
		for at, i := range maglevTable(other, int(gateLimitMAGLEV_SIZE)) {
			if other[i] != names[table[at]] {
				t.Fatalf("%d names: entry %d depends on the order", n, at)
			}
		}
	}
	if maglevTable(nil, int(gateLimitMAGLEV_SIZE)) != nil {
		t.Error("a table without names")
	}
}

// Removing a name leaves most entries of the others unchanged.
func TestMaglevChangesFewEntriesWhenANameGoes(t *testing.T) {
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
		// Eisenbud et al., figure 12: a few percent more than necessary.
		if moved > int(gateLimitMAGLEV_SIZE)*15/100 {
			t.Errorf("%d names: removing one moved %d of %d entries of others", n, moved, int(gateLimitMAGLEV_SIZE))
		}
	}
}

// With affinity, a client address keeps its pod whatever the port, clients spread over the pods, and draining a pod
// moves only its own clients.
func TestAffinityKeepsAClientsPod(t *testing.T) {
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
			t.Fatalf("client %d went to the draining pod", h)
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
	// A client whose pod refuses gets another one, this time only.
	s := w.syn(1000)
	pod := podOf(t, w.wantRun(onNIC, s.frame(), tcxRedirect))
	if to := podOf(t, w.wantRun(onPod1+program(pod-1), w.refusal(pod), tcxRedirect)); to == pod {
		t.Error("it went to the same pod")
	}
	// Without affinity, the load decides again.
	w.service(vip, 100, 100)
	var n gateMaglevTable
	i, _ := w.g.services.index(vip)
	if err := w.g.objs.MaglevTables.Lookup(i, &n); err == nil {
		t.Error("the table remains")
	}
}

// The count includes flows through other edge nodes. Pods on this node come first if the service prefers them.
func TestNewFlowsGoToThePodWithFewestAcrossNodes(t *testing.T) {
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
	w.must(w.g.SetElsewhere(vip, 1, 99)) // ignored for a pod on this node
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
		t.Error("went to a draining pod")
	}
	if err := w.g.SetElsewhere(netip.MustParseAddrPort("10.46.100.77:1"), 9, 1); err == nil {
		t.Error("no error for an unknown pod")
	}
}
