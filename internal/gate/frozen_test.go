// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/cgroup"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/test/testutil/need"
)

// freeze tells the gate that a pod of vip is frozen.
func (w *world) freeze(i int) {
	w.Helper()
	w.must(inNamespace(w.ns, func() error { return w.g.SetFrozen(vip, uint64(i), true) }))
}

// wantFreeze checks what the gate says of a pod of vip.
func (w *world) wantFreeze(i int, want Freeze, why string) {
	w.Helper()
	if got, ok := w.g.PodFreeze(vip, uint64(i)); !ok || got != want {
		w.Errorf("%s: pod %d is %d, known %v; want %d", why, i, got, ok, want)
	}
}

// lastAsked returns when pod 1 of vip was asked something last.
func (w *world) lastAsked() monotime.Time {
	w.Helper()
	c, err := w.g.PodCounters(vip, 1)
	w.must(err)
	return c.LastAsked
}

// acknowledged is connected, and the pod has acknowledged ten bytes of the client and offers no more room.
func acknowledged(w *world) {
	connected(w)
	w.wantRun(onNIC, w.fromClient("PA", 1001, 5001, make([]byte, 10)...).frame(), tcxRedirect)
	w.wantRun(onPod1, w.fromPod(1, "A", 5001, 1011).frame(), tcxRedirect)
}

// full is acknowledged, and the pod has offered no room beyond what it has received.
func full(w *world) {
	w.warm(vip, 1)
	w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
	synack := w.fromPod(1, "SA", 5000, 1001)
	synack.options, synack.window = synOptions, 10
	w.wantRun(onPod1, synack.frame(), tcxRedirect)
	w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
	w.wantRun(onNIC, w.fromClient("PA", 1001, 5001, make([]byte, 10)...).frame(), tcxRedirect)
	f := w.fromPod(1, "A", 5001, 1011).frame()
	set16(48, 0)(f) // the window
	setTCPSum(f[14:])
	w.wantRun(onPod1, f, tcxRedirect)
}

// asking are segments to a frozen pod.
var asking = []struct {
	name  string
	world func(w *world)
	on    program
	s     func(w *world) segment
	asks  bool // something of the program
}{
	{"SYN", func(w *world) { w.warm(vip, 1) }, onNIC, func(w *world) segment { return w.syn(1000) }, true},
	{"SYN of this node", func(w *world) { w.warm(vip, 1) }, onLocal, func(w *world) segment { return w.syn(1000) }, true},
	{"SYN of another pod", func(w *world) { w.warm(vip, 1) }, onPod2, func(w *world) segment { return w.syn(1000) }, true},
	{"SYN that is repeated", func(w *world) {
		w.warm(vip, 1)
		w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
	}, onNIC, func(w *world) segment { return w.syn(1000) }, true},
	{"end of the handshake", func(w *world) {
		w.warm(vip, 1)
		w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
		synack := w.fromPod(1, "SA", 5000, 1001)
		synack.options = synOptions
		w.wantRun(onPod1, synack.frame(), tcxRedirect)
	}, onNIC, func(w *world) segment { return w.fromClient("A", 1001, 5001) }, true},
	{"new SYN on the ports of an open connection", connected, onNIC, func(w *world) segment { return w.syn(7000) }, true},
	{"data", connected, onNIC, func(w *world) segment { return w.fromClient("PA", 1001, 5001, 1, 2, 3) }, true},
	{"one byte", connected, onNIC, func(w *world) segment { return w.fromClient("A", 1001, 5001, 1) }, true},
	{"data after a gap", connected, onNIC, func(w *world) segment { return w.fromClient("A", 1101, 5001, 1, 2) }, true},
	{"data, repeated and more", acknowledged, onNIC,
		func(w *world) segment { return w.fromClient("A", 1001, 5001, make([]byte, 11)...) }, true},
	{"FIN", connected, onNIC, func(w *world) segment { return w.fromClient("FA", 1001, 5001) }, true},
	{"FIN with data", connected, onNIC, func(w *world) segment { return w.fromClient("FA", 1001, 5001, 1) }, true},
	{"FIN that is repeated", func(w *world) {
		connected(w)
		w.wantRun(onNIC, w.fromClient("FA", 1001, 5001).frame(), tcxRedirect)
	}, onNIC, func(w *world) segment { return w.fromClient("FA", 1001, 5001) }, true},
	{"FIN where there is no room", full, onNIC, func(w *world) segment { return w.fromClient("FA", 1011, 5001) }, true},

	{"ACK of data", func(w *world) { connected(w); w.sent(podData(w)) }, onNIC,
		func(w *world) segment { return w.fromClient("A", 1001, 5001+uint32(len(podData(w).payload))) }, true},
	{"ACK of some of the data", func(w *world) { connected(w); w.sent(podData(w)) }, onNIC,
		func(w *world) segment { return w.fromClient("A", 1001, 5002) }, true},
	{"window that opens", func(w *world) { connected(w); w.sent(podData(w)) }, onNIC,
		func(w *world) segment { s := w.fromClient("A", 1001, 5001); s.window = 65000; return s }, true},
	{"ACK of data after the client's FIN", func(w *world) {
		connected(w)
		w.wantRun(onNIC, w.fromClient("FA", 1001, 5001).frame(), tcxRedirect)
		w.wantRun(onPod1, w.fromPod(1, "PA", 5001, 1002, 1, 2, 3).frame(), tcxRedirect)
	}, onNIC, func(w *world) segment { return w.fromClient("A", 1002, 5004) }, true},
	{"ACK of data that has not passed here", connected, onNIC,
		func(w *world) segment { return w.fromClient("A", 1001, 9001) }, true},

	{"ACK that repeats one", func(w *world) {
		connected(w)
		w.sent(podData(w))
		w.acked(5003)
	}, onNIC, func(w *world) segment { return w.fromClient("A", 1001, 5003) }, false},
	{"ACK older than the last", func(w *world) {
		connected(w)
		w.sent(podData(w))
		w.acked(5003)
	}, onNIC, func(w *world) segment { return w.fromClient("A", 1001, 5002) }, false},
	{"window that shrinks", func(w *world) { connected(w); w.sent(podData(w)) }, onNIC,
		func(w *world) segment { s := w.fromClient("A", 1001, 5001); s.window = 100; return s }, false},
	{"bare ACK", connected, onNIC, func(w *world) segment { return w.fromClient("A", 1001, 5001) }, false},
	{"keepalive", connected, onNIC, func(w *world) segment { return w.fromClient("A", 1000, 5001) }, false},
	{"keepalive with a byte", connected, onNIC, func(w *world) segment { return w.fromClient("A", 1000, 5001, 0) }, false},
	{"keepalive after data", acknowledged, onNIC, func(w *world) segment { return w.fromClient("A", 1010, 5001) }, false},
	{"keepalive with a byte, after data", acknowledged, onNIC,
		func(w *world) segment { return w.fromClient("A", 1010, 5001, 0) }, false},
	{"window probe", full, onNIC, func(w *world) segment { return w.fromClient("A", 1010, 5001) }, false},
	{"window probe with a byte", full, onNIC, func(w *world) segment { return w.fromClient("A", 1011, 5001, 9) }, false},
	{"data that is acknowledged", acknowledged, onNIC,
		func(w *world) segment { return w.fromClient("PA", 1001, 5001, make([]byte, 10)...) }, false},
	{"FIN that is acknowledged", func(w *world) {
		connected(w)
		w.wantRun(onNIC, w.fromClient("FA", 1001, 5001).frame(), tcxRedirect)
		w.wantRun(onPod1, w.fromPod(1, "A", 5001, 1002).frame(), tcxRedirect)
	}, onNIC, func(w *world) segment { return w.fromClient("FA", 1001, 5001) }, false},
	{"RST", connected, onNIC, func(w *world) segment { return w.fromClient("R", 1001, 0) }, false},
	{"forged RST", connected, onNIC, func(w *world) segment { return w.fromClient("RA", 77, 0) }, false},
	{"the kernel repeats what the pod said", func(w *world) {
		connected(w)
		w.wantRun(onPod1, podData(w).frame(), tcxRedirect)
	}, onPod1, podData, false},
	{"the kernel's ACK", connected, onPod1, func(w *world) segment { return w.fromPod(1, "A", 5001, 1001) }, false},
}

func TestFrozenPodIsThawedForWhatOnlyItsProgramAnswers(t *testing.T) {
	all := newWorld(t, nil)
	for _, c := range asking {
		t.Run(c.name, func(t *testing.T) {
			w := all.in(t)
			c.world(w)
			tick()
			before := w.lastAsked()
			w.freeze(1)
			if now := w.lastAsked(); now != before {
				t.Errorf("freezing it asked for it: %v after %v", now, before)
			}
			in := c.s(w).frame()
			out := w.wantRun(c.on, in, tcxRedirect)
			if c.on == onPod1 {
				w.toClient(in, out)
			} else {
				w.toPod(1, in, out)
			}
			want, thaws := PodFrozen, uint64(0)
			if c.asks {
				want, thaws = PodThaws, 1
			}
			w.wantFreeze(1, want, "after it")
			w.run(c.on, in)
			if got := w.counted()["thaws"]; got != thaws {
				t.Errorf("%d thaws, want %d", got, thaws)
			}
			if asked := w.lastAsked(); c.on != onPod1 && (asked != before) != c.asks {
				t.Errorf("last asked at %v, before %v; asks %v", asked, before, c.asks)
			}
			w.must(w.g.SetFrozen(vip, 1, false))
			w.wantFreeze(1, PodRuns, "thawed")
			w.run(onNIC, w.syn(90000).frame())
			if got := w.counted()["thaws"]; got != thaws {
				t.Errorf("%d thaws, the last of them while it ran", got)
			}
		})
	}
}

// What the program says is use as well: it is not frozen between two lines of its own.
func TestWhatAPodSaysCountsAsAsked(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	tick()
	before := w.lastAsked()
	w.wantRun(onPod1, w.fromPod(1, "A", 5001, 1001).frame(), tcxRedirect)
	if w.lastAsked() != before {
		t.Error("a bare ACK of its kernel counts")
	}
	w.wantRun(onPod1, podData(w).frame(), tcxRedirect)
	if w.lastAsked() == before {
		t.Error("its data does not count")
	}
}

// Whichever CPUs handle the packets, one of them sends the event.
func TestThawIsReportedOnceASleep(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	ev := w.events()
	data := w.fromClient("PA", 1001, 5001, 1, 2, 3).frame()
	const rounds = 200
	for round := 1; round <= rounds; round++ {
		w.must(w.g.setFrozen(vip, 1, true))
		var cpus sync.WaitGroup
		start := make(chan struct{})
		for range 4 {
			cpus.Go(func() {
				<-start
				w.run(onNIC, slices.Clone(data))
			})
		}
		close(start)
		cpus.Wait()
		got := ev.await(t, EventThaw, round)
		if e := got[len(got)-1]; len(got) != round || e.Pod != 1 || e.Service != vip || e.Cause != ThawClient || e.At == 0 {
			t.Fatalf("round %d: %d events, the last is %+v", round, len(got), e)
		}
		w.must(w.g.setFrozen(vip, 1, false))
	}
}

// An event for which there is no room is sent for a later packet.
func TestThawIsReportedOnceThereIsRoomForEvents(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	data := w.fromClient("PA", 1001, 5001, 1, 2, 3).frame()
	for w.counted()["events_lost"] == 0 {
		for range 1000 {
			w.must(w.g.setFrozen(vip, 1, false))
			w.must(w.g.setFrozen(vip, 1, true))
			w.run(onNIC, data)
		}
	}
	w.wantFreeze(1, PodFrozen, "no room for its event")
	ev := w.events()
	ev.await(t, EventThaw, int(w.counted()["thaws"]))
	w.run(onNIC, data)
	ev.await(t, EventThaw, int(w.counted()["thaws"]))
	w.wantFreeze(1, PodThaws, "there is room again")
}

// The next daemon learns of a thaw that its predecessor did not carry out, and of pods that are frozen.
func TestNextDaemonFindsFrozenPodsAndDueThaws(t *testing.T) {
	w, cfg := newReopened(t)
	closeAndRemove(t, w, cfg)
	w.podLink[2] = veth(t, "pod2")
	connected(w)
	w.freeze(1)
	w.addPod(vip, 2)
	w.serve(vip, 2)
	w.freeze(2)
	ev := w.events()
	w.wantRun(onNIC, dataFrame(w), tcxRedirect)
	ev.await(t, EventThaw, 1)
	w.must(w.g.Close())
	w.reopen(cfg)
	w.wantFreeze(1, PodThaws, "reopened")
	w.wantFreeze(2, PodFrozen, "reopened")
	w.freeze(1) // does not undo a thaw that is due
	next := &events{}
	stop, err := w.g.Events(func(e Event) {
		next.mu.Lock()
		defer next.mu.Unlock()
		next.all = append(next.all, e)
	})
	w.must(err)
	defer func() { w.must(stop()) }()
	if got := next.await(t, EventThaw, 1); got[0].Pod != 1 || got[0].Service != vip {
		t.Errorf("%+v", got)
	}
	var n uint32
	w.must(w.g.objs.FrozenPods.Get(&n))
	if n != 2 {
		t.Errorf("the programs know of %d frozen pods, want 2", n)
	}
	for i := range 2 {
		w.must(w.g.RemovePod(vip, uint64(i+1)))
	}
	w.must(w.g.objs.FrozenPods.Get(&n))
	if n != 0 {
		t.Errorf("the programs know of %d frozen pods without any pod", n)
	}
}

func TestNewFlowsPreferPodsThatRun(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1, 2, 3)
	from := func(port int) []byte {
		s := w.syn(1000)
		s.from = netip.AddrPortFrom(client.Addr(), uint16(port))
		return s.frame()
	}
	for i := 1; i <= 2; i++ {
		w.freeze(i)
	}
	for i := range 8 {
		if got := podOf(t, w.wantRun(onNIC, from(41000+i), tcxRedirect)); got != 3 {
			t.Errorf("client %d got pod %d, which is frozen", i, got)
		}
	}
	w.freeze(3)
	first := podOf(t, w.wantRun(onNIC, from(42000), tcxRedirect))
	if first == 3 {
		t.Error("of frozen pods, the one with the most flows got the client")
	}
	w.wantFreeze(first, PodThaws, "it got a client")
	for i := range 4 {
		if got := podOf(t, w.wantRun(onNIC, from(43000+i), tcxRedirect)); got != first {
			t.Errorf("client %d got pod %d, though pod %d is about to run", i, got, first)
		}
	}
	if got := w.counted()["thaws"]; got != 1 {
		t.Errorf("%d pods were thawed for one client", got)
	}
}

// With affinity, a client keeps its pod, which may have state of it.
func TestClientWithAffinityKeepsItsFrozenPod(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Affinity: true})
	w.must(err)
	for i := 1; i <= 3; i++ {
		w.addPod(vip, i)
		w.serve(vip, i)
	}
	syn := func(port uint16) []byte {
		s := w.syn(1000)
		s.from = netip.AddrPortFrom(client.Addr(), port)
		return s.frame()
	}
	pod := podOf(t, w.wantRun(onNIC, syn(41000), tcxRedirect))
	w.freeze(pod)
	if got := podOf(t, w.wantRun(onNIC, syn(41001), tcxRedirect)); got != pod {
		t.Errorf("the client got pod %d, before it was frozen pod %d", got, pod)
	}
	w.wantFreeze(pod, PodThaws, "its client came")
}

// In a flood, a SYN gets no entry, and its pod is chosen again at the ACK: the same one, though it thaws meanwhile.
func TestFrozenPodIsThawedInAFlood(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Ring = 4 })
	w.warm(vip, 1, 2, 3)
	for port := uint16(41000); port < 41008; port++ {
		w.forgetFlows()
		w.crowd() // half-open flows keep their places for a short time only
		for i := 1; i <= 3; i++ {
			w.must(w.g.setFrozen(vip, uint64(i), true))
		}
		syn := w.syn(1000)
		syn.from = netip.AddrPortFrom(client.Addr(), port)
		pod := podOf(t, w.wantRun(onNIC, syn.frame(), tcxRedirect))
		if _, there := w.flow(syn.from, vip); there {
			t.Fatal("the SYN got an entry")
		}
		w.wantFreeze(pod, PodThaws, "SYN without an entry")
		w.forgetSYNs()
		w.must(w.g.setFrozen(vip, uint64(pod), false))
		w.must(w.g.setFrozen(vip, uint64(pod), true))
		ack := w.fromClient("A", 1001, 5001)
		ack.from = syn.from
		if got := podOf(t, w.wantRun(onNIC, ack.frame(), tcxRedirect)); got != pod {
			t.Errorf("its ACK went to pod %d, its SYN to pod %d", got, pod)
		}
		w.wantFreeze(pod, PodThaws, "ACK that ends a handshake")
		for i := 1; i <= 3; i++ {
			w.must(w.g.setFrozen(vip, uint64(i), false))
		}
	}
}

// A frozen pod is thawed at its home node, for clients of all edge nodes.
func TestHomeNodeThawsForClientsOfOtherNodes(t *testing.T) {
	all := newRemoteWorld(t, nil)
	for _, c := range asking {
		s := c.s(all)
		if c.on == onPod1 || s.flags == "S" && s.seq != 1000 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			w := all.in(t)
			c.world(w)
			w.freeze(1)
			w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, bare(c.s(w))), tcxRedirect)
			want := PodFrozen
			if c.asks {
				want = PodThaws
			}
			w.wantFreeze(1, want, "after it came from an edge node")
		})
	}
}

// An edge node does not report for a pod of another node, but avoids it.
func TestEdgeNodeAvoidsFrozenPodsOfOtherNodes(t *testing.T) {
	w := newRemoteWorld(t, nil)
	w.remote()
	w.addPod(vip, 2)
	w.serve(vip, 2)
	w.freeze(1)
	for i := range 4 {
		s := w.syn(1000)
		s.from = netip.AddrPortFrom(client.Addr(), uint16(41000+i))
		if got := podOf(t, w.wantRun(onNIC, s.frame(), tcxRedirect)); got != 2 {
			t.Errorf("client %d got pod %d", i, got)
		}
	}
	w.freeze(2)
	s := w.syn(1000)
	if _, out := w.run(onNIC, s.frame()); !encapsulated(out) {
		t.Error("of two frozen pods, the one with more flows got the client")
	}
	w.wantFreeze(1, PodFrozen, "it is on another node")
	if got := w.counted()["thaws"]; got != 0 {
		t.Errorf("%d thaws", got)
	}
}

// What others send to a pod does not pass the gate, but what its kernel replies does.
func TestFrozenPodIsThawedForPeersOutsideItsService(t *testing.T) {
	for _, c := range []struct {
		name  string
		s     segment
		on    program
		thaws bool
	}{
		{"SYN-ACK of another port", segment{from: netip.AddrPortFrom(podAt[1].Addr(), 9090), to: foreign, flags: "SA"},
			onPod1, true},
		{"ACK to a server", segment{from: netip.AddrPortFrom(podAt[1].Addr(), 50000), to: foreign, flags: "A"}, onPod1, true},
		{"ACK to another service", segment{from: netip.AddrPortFrom(podAt[1].Addr(), 50000),
			to: netip.MustParseAddrPort("10.46.100.77:80"), flags: "A"}, onPod1, true},
		{"RST", segment{from: netip.AddrPortFrom(podAt[1].Addr(), 9090), to: foreign, flags: "RA"}, onPod1, false},
		{"forged by another pod", segment{from: netip.AddrPortFrom(podAt[1].Addr(), 9090), to: foreign, flags: "SA"}, onPod2,
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.warm(vip, 1)
			ev := w.events()
			c.s.src, c.s.dst = podMAC[1], w.podLink[1].Attrs().HardwareAddr
			w.run(c.on, c.s.frame())
			w.freeze(1)
			w.run(c.on, c.s.frame())
			want := PodFrozen
			if c.thaws {
				want = PodThaws
				if got := ev.await(t, EventThaw, 1); got[0].Cause != ThawDirect || got[0].Pod != 1 {
					t.Errorf("%+v", got)
				}
			}
			w.wantFreeze(1, want, "after it")
			if w.lastAsked() != 0 {
				t.Error("it counts as asked")
			}
		})
	}
}

func TestWhatCannotBeFrozenIsRefused(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1)
	l := w.podLink[2].Attrs()
	w.must(w.g.AddPod(Pod{ID: frontID, Service: vip, Addr: podAt[2], Ifindex: l.Index, MAC: podMAC[2],
		HostMAC: l.HardwareAddr}))
	for name, id := range map[string]uint64{"front": frontID, "unknown pod": 7} {
		if err := w.g.SetFrozen(vip, id, true); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, ok := w.g.PodFreeze(vip, 7); ok {
		t.Error("an unknown pod is known")
	}
	w.must(w.g.RemovePod(vip, frontID))
}

// SetFrozen returns after the programs that have not seen it: a segment that they have passed is in LastAsked.
func TestNothingIsMissedBetweenDecisionAndFreeze(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	data := w.fromClient("PA", 1001, 5001, 1, 2, 3).frame()
	for round := range 50 {
		tick()
		decided := w.lastAsked()
		var cpu sync.WaitGroup
		cpu.Go(func() { w.run(onNIC, slices.Clone(data)) })
		w.freeze(1)
		asked := w.lastAsked()
		cpu.Wait()
		if got, _ := w.g.PodFreeze(vip, 1); asked == decided && got == PodFrozen {
			t.Fatalf("round %d: the packet shows neither in LastAsked nor in the pod's state", round)
		}
		w.must(w.g.SetFrozen(vip, 1, false))
	}
}

// echoAt and sendAt are variables that have this program serve at an address instead of running tests.
const (
	echoAt = "WANGELL_TEST_ECHO_AT"
	sendAt = "WANGELL_TEST_SEND_AT"
)

// longAnswer is how much runServer sends to each client, bytes.
const longAnswer = 32 << 20

// runServer answers each connection with what it sends, or with longAnswer zeros.
func runServer(at string, echoes bool) int {
	l, err := net.Listen("tcp4", at)
	for err == nil {
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			go func() {
				if echoes {
					_, _ = io.Copy(c, c)
				} else {
					_, _ = c.Write(make([]byte, longAnswer))
				}
				c.Close()
			}()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// stillServer is a process in a pod's network namespace and a cgroup of its own.
type stillServer struct {
	testing.TB
	freezer *freezer.Freezer
	cgroup  string
}

// serverInPod starts a server in the network namespace of pod 1, and returns once it serves. variable is echoAt or
// sendAt.
func serverInPod(n *network, variable string) *stillServer {
	n.Helper()
	name := fmt.Sprintf("wangell-gate-test-%d", os.Getpid())
	s := &stillServer{n, freezer.New(""), name}
	dir := filepath.Join(cgroup.DefaultRoot, "freezer", name)
	if _, err := os.Stat(filepath.Dir(dir)); errors.Is(err, os.ErrNotExist) { // cgroups of version 2 only
		dir = filepath.Join(cgroup.DefaultRoot, name)
	}
	n.must(os.Mkdir(dir, 0o755))
	n.Cleanup(func() { n.must(os.Remove(dir)) })
	if s.freezer.Gone(name) {
		need.Unmet(n, "needs a freezer of cgroups")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), variable+"="+podAt[1].String())
	cmd.Stderr = os.Stderr
	n.must(inNamespace(podNS(1), cmd.Start))
	n.Cleanup(func() {
		n.must(s.freezer.Thaw(name))
		n.must(cmd.Process.Kill())
		_ = cmd.Wait() // says that it was killed
	})
	n.must(os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0))
	eventually(n, func() error {
		c, err := dialWithin(podNS(1), podAt[1], time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	return s
}

// stop freezes the server, as a daemon does, and returns once it stands still.
func (s *stillServer) stop(g *Gate) {
	s.Helper()
	if err := g.setFrozen(vip, 1, true); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	if err := s.freezer.Freeze(ctx, s.cgroup); err != nil {
		s.Fatal(err)
	}
}

// resume thaws it.
func (s *stillServer) resume(g *Gate) {
	s.Helper()
	if err := s.freezer.Thaw(s.cgroup); err != nil {
		s.Fatal(err)
	}
	if err := g.SetFrozen(vip, 1, false); err != nil {
		s.Fatal(err)
	}
}

// answered writes to a connection, and reads as much back once the pod is thawed.
func (s *stillServer) answered(n *network, c net.Conn, thaws int) {
	s.Helper()
	sent, got := make([]byte, 100), make([]byte, 100)
	_, _ = rand.Read(sent)
	n.must(c.SetDeadline(time.Now().Add(2 * time.Minute)))
	_, err := c.Write(sent)
	n.must(err)
	n.ev.await(n, EventThaw, thaws)
	s.resume(n.g)
	_, err = io.ReadFull(c, got)
	n.must(err)
	if !bytes.Equal(got, sent) {
		s.Fatalf("thaw %d: sent %x, got %x", thaws, sent, got)
	}
}

// A connection lasts through a thousand sleeps of its server. New ones are accepted in its sleep, and keepalives do not
// disturb it.
func TestConnectionsSurviveThatTheirServerIsFrozen(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Proof: ProofNever})
	n.must(err)
	n.addPod(vip, 1)
	s := serverInPod(n, echoAt)
	c, err := dial("client", vip)
	n.must(err)
	defer c.Close()
	const rounds = 1000
	for thaws := 1; thaws <= rounds; thaws++ {
		s.stop(n.g)
		s.answered(n, c, thaws)
	}

	s.stop(n.g)
	second, err := dial("client", vip)
	n.must(err)
	defer second.Close()
	s.answered(n, second, rounds+1)

	n.must(c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 100}))
	n.untilQuiet() // the client acknowledges the last answer late
	s.stop(n.g)
	before, err := n.g.PodCounters(vip, 1)
	n.must(err)
	eventually(t, func() error {
		now, err := n.g.PodCounters(vip, 1)
		if probes := now.PacketsIn - before.PacketsIn; err == nil && probes < 2 {
			err = fmt.Errorf("%d keepalives", probes)
		}
		return err
	})
	if f, _ := n.g.PodFreeze(vip, 1); f != PodFrozen {
		t.Errorf("keepalives had the pod thawed: %d", f)
	}
	s.answered(n, c, rounds+2)
	if got := n.ev.await(t, EventThaw, rounds+2); len(got) != rounds+2 {
		t.Errorf("%d thaws in %d sleeps", len(got), rounds+2)
	}
}

// A client reads some of a large answer, and pauses. The server is frozen meanwhile: its kernel has more to send, and
// its program more to write. Once the client reads on, the server is thawed and the rest comes, also after the client
// has closed its side.
func TestPausedDownloadGoesOnAfterAFreeze(t *testing.T) {
	for name, dialled := range map[string]func(n *network, s *stillServer) *net.TCPConn{
		"client": func(n *network, _ *stillServer) *net.TCPConn { return dialSlowly(n, "client", vip) },
		"client that has closed its side": func(n *network, _ *stillServer) *net.TCPConn {
			c := dialSlowly(n, "client", vip)
			n.must(c.CloseWrite())
			return c
		},
		"front": func(n *network, _ *stillServer) *net.TCPConn {
			n.addFront(vip, frontID, 2)
			n.must(n.g.ServeFront(vip, frontID))
			return dialSlowly(n, podNS(2), podAt[1])
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, XDPAuto, 1500)
			_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Proof: ProofNever})
			n.must(err)
			n.addPod(vip, 1)
			s := serverInPod(n, sendAt)
			c := dialled(n, s)
			defer c.Close()
			left := int64(longAnswer)
			for sleeps := 1; sleeps <= 3; sleeps++ {
				got, err := io.CopyN(io.Discard, c, 1<<20)
				n.must(err)
				left -= got
				n.untilQuiet()
				s.stop(n.g)
				// All that the two kernels hold, and more.
				read := make(chan error, 1)
				go func() { _, err := io.CopyN(io.Discard, c, 8<<20); read <- err }()
				n.ev.await(t, EventThaw, sleeps)
				s.resume(n.g)
				n.must(<-read)
				left -= 8 << 20
			}
			got, err := io.Copy(io.Discard, c)
			if err != nil || got != left {
				t.Errorf("got %d bytes more, want %d: %v", got, left, err)
			}
		})
	}
}

// dialSlowly connects from a namespace with a small receive buffer.
func dialSlowly(n *network, from string, to netip.AddrPort) *net.TCPConn {
	n.Helper()
	c, err := dial(from, to)
	n.must(err)
	n.must(c.SetReadBuffer(64 << 10))
	n.must(c.SetDeadline(time.Now().Add(2 * time.Minute)))
	return c
}

// untilQuiet returns once pod 1 of vip has neither sent nor received anything for a while.
func (n *network) untilQuiet() {
	n.Helper()
	packets := func() uint64 {
		c, err := n.g.PodCounters(vip, 1)
		n.must(err)
		return c.PacketsIn + c.PacketsOut
	}
	for before := packets(); ; {
		time.Sleep(50 * time.Millisecond)
		now := packets()
		if now == before {
			return
		}
		before = now
	}
}
