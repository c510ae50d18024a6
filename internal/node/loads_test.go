// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"wangell.loutres.me/internal/wire"
)

func TestLoadIsReportedWhenItChangesAndOnceMoreAfterAWhile(t *testing.T) {
	var l reportedLoad
	var got []int
	for i, open := range []uint32{0, 0, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 0, 0} {
		if l.due(open) {
			got = append(got, i)
		}
	}
	if want := []int{0, 2, 5, 5 + loadAgain, 16}; !slices.Equal(got, want) {
		t.Errorf("reported at readings %v, want %v", got, want)
	}
	// A new session gets every load, even 0.
	l = reportedLoad{}
	if !l.due(0) {
		t.Error("a new session does not get the load")
	}
}

// The total of the home node is older than the own number, so flows that were closed since must not count as others'.
func TestOwnFlowsNeverCountAsThoseOfOtherNodes(t *testing.T) {
	var r readings
	for _, c := range []struct{ total, own, want uint32 }{
		{0, 0, 0},
		{10, 0, 10},
		{30, 10, 20},
		{10, 12, 0}, // the newest own flows are not in the total yet
	} {
		if got := r.others(c.total, c.own); got != c.want {
			t.Errorf("total %d, own %d: %d of others, want %d", c.total, c.own, got, c.want)
		}
	}
	for _, own := range []uint32{50, 40, 0} {
		r.add(own)
	}
	if got := r.others(50, 0); got != 0 {
		t.Errorf("%d of 50 flows that were just closed count as others'", got)
	}
	for range loadReadings {
		r.add(0)
	}
	if got := r.others(50, 0); got != 50 {
		t.Errorf("own flows closed long ago: %d of others, want 50", got)
	}
}

// hold opens a connection from a namespace and returns the name of the pod that answers.
func hold(t *testing.T, ns string) (pod string, conn net.Conn) {
	t.Helper()
	h, err := netns.GetFromName(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := inNetns(h, func() (err error) {
		conn, err = net.DialTimeout("tcp4", vip.String(), 20*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	b := make([]byte, 1000)
	n, err := conn.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b[:n])
	at := strings.LastIndex(text, "\n") + 1
	pod, _, _ = strings.Cut(text[at:], " ")
	return pod, conn
}

// awaitReported waits until a node has reported the final numbers of open flows of all pods, which sum up to open: each
// twice in a row. It reports no number a third time.
func awaitReported(l *lan, node string, open uint32) {
	l.t.Helper()
	var last map[uint64]uint32
	reported := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		last = map[uint64]uint32{}
		again := map[uint64]bool{}
		for i, m := range l.all {
			if loads, ok := m.(*wire.Loads); ok && l.from[i] == node {
				for _, p := range loads.Pods {
					before, known := last[p.PodID]
					again[p.PodID] = known && before == p.OpenFlows
					last[p.PodID] = p.OpenFlows
				}
			}
		}
		sum := uint32(0)
		for pod, n := range last {
			if !again[pod] {
				return false
			}
			sum += n
		}
		return sum == open
	}
	for end := time.Now().Add(60 * time.Second); !reported(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("%s reported %v, want %d in all, each number twice", node, last, open)
		}
	}
}

func TestEdgeNodeBalancesByTheLoadsThatHomeNodesReport(t *testing.T) {
	l := newLAN(t)
	l.sendNodes(1, "n1", "n2")
	edge := owner(vip.Addr(), []scored{score("n1"), score("n2")}).name
	home := map[string]string{"n1": "n2", "n2": "n1"}[edge]
	pods := []wire.Backend{l.podOn(home, 1), l.podOn(home, 2)}
	for i := range pods {
		pods[i].State = wire.PodServing
		l.listen(i + 1)
	}
	l.sendAll(&wire.Backends{Service: vip, Generation: 1, Pods: pods})
	awaitLoad := func(pod uint64, open uint32) {
		t.Helper()
		awaitFrom(l, home, func(m *wire.Loads) bool {
			return slices.Contains(m.Pods, wire.PodLoad{Service: vip, PodID: pod, OpenFlows: open})
		})
	}
	awaitLoad(1, 0)
	awaitLoad(2, 0)
	l.forget()
	took := map[string]int{}
	var last net.Conn
	for range 4 {
		var pod string
		pod, last = hold(t, client)
		took[pod]++
	}
	if took["pod1"] != 2 || took["pod2"] != 2 {
		t.Errorf("connections by pod: %v", took)
	}
	awaitLoad(1, 2)
	awaitLoad(2, 2)

	// Pod 1 has 6 more from another edge node, so it gets none of the next five.
	edgePeer := uint64(0)
	for _, p := range l.server.Peers() {
		if p.Node == edge {
			edgePeer = p.ID
		}
	}
	if err := l.server.Send(edgePeer, &wire.Loads{Pods: []wire.PodLoad{
		{Service: vip, PodID: 1, OpenFlows: 8}, {Service: vip, PodID: 77, OpenFlows: 1},
		{Service: netip.MustParseAddrPort("10.46.100.9:1"), PodID: 1, OpenFlows: 1},
	}}); err != nil {
		t.Fatal(err)
	}
	// Messages are handled in order, so after this one the Loads have been handled.
	l.sendAll(&wire.Refuse{Service: netip.MustParseAddrPort("10.46.100.9:1")})
	for range 5 {
		if pod, _ := hold(t, client); pod != "pod2" {
			t.Errorf("a connection went to %s", pod)
		}
	}
	awaitLoad(2, 7)

	// A change of a warm service takes effect: with affinity, all connections of the client go to one pod. Without it,
	// the next two would go to two pods.
	affine := hello(wire.FlagAnnounce | wire.FlagAffinity)
	affine.Retries = 2
	if err := l.server.UpdateServices([]wire.Service{affine}, nil); err != nil {
		t.Fatal(err)
	}
	open := uint32(4 + 5)
	for kept := map[string]int{}; len(kept) != 1; {
		kept = map[string]int{}
		for range 6 {
			pod, conn := hold(t, client)
			kept[pod]++
			defer conn.Close()
			open++
		}
	}
	awaitReported(l, home, open)

	// Closed connections are reported, and then nothing more.
	last.Close()
	awaitReported(l, home, open-1)
	l.forget()
	time.Sleep((loadAgain + 3) * loadInterval) // nothing may come
	l.mu.Lock()
	for i, m := range l.all {
		if m, ok := m.(*wire.Loads); ok {
			t.Errorf("%s sends %+v although nothing changes", l.from[i], m)
		}
	}
	for i, m := range l.all {
		if _, ok := m.(*wire.Loads); ok && l.from[i] == edge {
			t.Errorf("%s has no pod, but sends %+v", edge, m)
		}
	}
	l.mu.Unlock()
	l.sendAll(&wire.Backends{Service: vip, Generation: 2})
}
